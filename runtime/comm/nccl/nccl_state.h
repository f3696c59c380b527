// What the communicators of a rank share: NCCL's communicators, a thread that watches over them,
// the flight recorder, and the one failure that ends them all.
//
// NCCL's communicators are made on first use, each by its own unique id through the store, and not
// by ncclCommSplit: that is collective over all ranks of the parent, used or not, and a
// communicator costs device memory and time. They are made without blocking and polled, so that a
// rank that does not come can be named, and the two directions between a pair can be made at once.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/error.h"
#include "rendezvous/store.h"
#include "runtime/comm/nccl/api.h"
#include "runtime/comm/nccl/flight_recorder.h"
#include "runtime/comm/nccl/streams.h"
#include "runtime/comm/world.h"

namespace mtl::nccl {

// One of NCCL's communicators.
struct Comm {
  GroupName name;
  std::mutex mutex;             // of the handle: another thread may abort it
  CommHandle handle = nullptr;  // null again when aborted
  uint64_t sequence = 0;        // of the last operation
};

class State {
 public:
  // `crash_dir`, `buffered_bytes`: as in NcclOptions.
  State(Store& store, const WorldOptions& options, std::unique_ptr<Streams> streams, const Api& api,
        std::filesystem::path crash_dir, int64_t buffered_bytes);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  int rank() const { return options_.rank; }
  int size() const { return options_.size; }
  Streams& streams() { return *streams_; }
  const Api& api() const { return api_; }
  int64_t buffered_bytes() const { return buffered_bytes_; }

  // Collective over the ranks of the name. begin_connect() waits for the lowest of them at most.
  std::shared_ptr<Comm> begin_connect(const GroupName& name);
  void finish_connect(Comm& comm);

  // Enqueues an operation, recorded and watched.
  void enqueue(Comm& comm, Stream stream, std::string what, int64_t bytes,
               const std::function<Result(CommHandle)>& call);
  // The host waits, no longer than there is hope.
  void wait(Event event);

  // Throws the failure, if any.
  void check();
  void fail(const Error& error);
  // This rank has failed for a reason of its own: tells its peers.
  void leave();

  Event take_event();
  void give_event(Event event);
  void* allocate(size_t bytes);

 private:
  using Clock = std::chrono::steady_clock;
  struct Flight {
    std::shared_ptr<Comm> comm;
    uint64_t sequence = 0;
    FlightRecorder::Slot slot = 0;
    Event start = nullptr, end = nullptr;
    std::optional<Clock::time_point> started;
    std::string what;
  };

  std::string key(const std::string& rest) const { return prefix_ + rest; }
  void settle(Comm& comm, const std::function<void()>& each_second);
  void watch();
  void look_at_flights();
  void look_at_comms();
  void listen();
  void timed_out(const Flight& flight);
  void publish_flight();
  void alarm(int rank, const char* why);
  static Error peer_lost(std::string what);
  Error broken(const Comm& comm, CommHandle handle, Result result) const;
  Error missing_at(const Comm& comm);
  // All at once: an abort waits for the device, on which operations of the others may be waiting.
  void abort(const std::vector<CommHandle>& handles);
  void abort_all();
  void stop_watching();
  void look_for_leavers();
  std::string write_dump(const std::string& reason);

  Store& store_;
  const WorldOptions options_;
  const std::string prefix_;
  const std::unique_ptr<Streams> streams_;
  const Api& api_;
  const std::filesystem::path crash_dir_;
  const int64_t buffered_bytes_;
  FlightRecorder recorder_;

  mutable std::mutex mutex_;  // of all that follows but the atomics
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Comm>> comms_;
  std::map<Stream, std::deque<Flight>> flights_;  // by stream, where they end in order
  std::vector<Event> events_;                     // free ones
  std::vector<void*> memory_;
  std::optional<Error> failure_;
  bool stopping_ = false;

  std::atomic<bool> failed_{false};
  std::atomic<bool> failing_{false};  // somebody is about to set the failure
  std::atomic<bool> asking_{false};   // our own timeout is being looked into
  std::thread watchdog_, listener_;
};

}  // namespace mtl::nccl
