// CommQueue: communication that runs beside computation, a FIFO of work with a thread of its own
// (CPU). One queue serves one group, so that all ranks of the group issue its collectives in the
// same order whatever the other groups do.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace mtl {

// What start()ed work throws ends the queue: later work is dropped, and every wait throws the same.
// start() and the waits belong to one thread; the thread of the queue starts with the first work.
class CommQueue {
 public:
  using Ticket = uint64_t;

  // asynchronous = false: start() does the work at once, so that nothing overlaps.
  explicit CommQueue(bool asynchronous);
  // Finishes what was started. An error that no wait has thrown is printed to stderr: somebody
  // relied on work that was not done.
  ~CommQueue();
  CommQueue(const CommQueue&) = delete;
  CommQueue& operator=(const CommQueue&) = delete;

  // Never throws what the work throws: that is for the waits.
  Ticket start(std::function<void()> work);
  // Work that moves so many bytes: small work is done at once, behind what was started before (and
  // what it throws is thrown here), because handing it over costs more than it hides.
  Ticket start(int64_t bytes, std::function<void()> work);
  // Returns when the work of this ticket, and so all before it, is done; rethrows the error of it
  // or of other work that has failed by then.
  void wait(Ticket ticket);
  void wait_all();

 private:
  void serve();
  void execute(const std::function<void()>& work);

  const bool asynchronous_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  Ticket started_ = 0;  // how many works; the ticket of a work is its number, from 1
  Ticket done_ = 0;
  std::exception_ptr error_;
  bool thrown_ = false;  // error_, by a wait
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace mtl
