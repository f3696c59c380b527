// CommQueue: communication that runs beside computation, a FIFO of work. One queue serves one
// group, so that all ranks of the group issue its collectives in the same order whatever the other
// groups do. It has a thread of its own where operations are done when they return (CPU); where the
// group has a lane, the work is enqueued there at once, and `wait` makes the device wait, not the
// host.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "runtime/comm/communicator.h"
#include "runtime/device/step_clock.h"

namespace mtl {

// What start()ed work throws ends the queue: later work is dropped, and every wait throws the same.
// start() and the waits belong to one thread; the thread of the queue starts with the first work.
class CommQueue {
 public:
  using Ticket = uint64_t;

  // asynchronous = false: start() does the work at once, so that nothing overlaps. `lane`: of the
  // group, null on a CPU; it outlives the queue, as `clock` does, in which what is waited for the
  // queue is Phase::wait.
  explicit CommQueue(bool asynchronous, CommLane* lane = nullptr, StepClock* clock = nullptr);
  // Finishes what was started, or lets the device wait for it. An error that no wait has thrown is
  // printed to stderr: somebody relied on work that was not done.
  ~CommQueue();
  CommQueue(const CommQueue&) = delete;
  CommQueue& operator=(const CommQueue&) = delete;

  // Never throws what the work throws: that is for the waits.
  Ticket start(std::function<void()> work);
  // Work that moves so many bytes: small work is done at once, behind what was started before (and
  // what it throws is thrown here), because handing it over costs more than it hides.
  // On a lane that costs next to nothing: all work goes there.
  Ticket start(int64_t bytes, std::function<void()> work);
  // Returns when the work of this ticket, and so all before it, is done, as the device's later ops
  // see it; rethrows the error of it or of other work that has failed by then.
  void wait(Ticket ticket);
  void wait_all();

 private:
  void serve();
  void execute(const std::function<void()>& work);

  const bool asynchronous_;
  CommLane* const lane_;  // null unless asynchronous
  StepClock* const clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  // How many works; the ticket of a work is its number, from 1. On a lane: the last number there.
  Ticket started_ = 0;
  Ticket done_ = 0;
  std::exception_ptr error_;
  bool thrown_ = false;  // error_, by a wait
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace mtl
