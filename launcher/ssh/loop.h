// One thread's loop over descriptors, timers and work posted by other threads. Handlers may watch,
// change and unwatch anything, themselves included; what is to be destroyed is destroyed by
// defer(), which runs between handlers.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "common/files.h"

namespace mtl::ssh {

using Clock = std::chrono::steady_clock;

class Loop {
 public:
  using Handler = std::function<void(uint32_t events)>;
  using Work = std::function<void()>;

  Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // `events` as epoll has them. The id is never 0.
  uint64_t watch(int fd, uint32_t events, Handler handler);
  void change(uint64_t id, uint32_t events);
  void unwatch(uint64_t id);
  // The descriptor was closed by somebody else: its number may belong to another one by now.
  void forget(uint64_t id);

  uint64_t at(Clock::time_point when, Work work);
  void cancel(uint64_t timer);

  void defer(Work work);  // in this thread, after the handler that runs now
  void post(Work work);   // from any thread

  void run();   // until stop()
  void stop();  // from any thread

 private:
  struct Watch {
    int fd;
    uint32_t events;
    std::shared_ptr<Handler> handler;
  };

  void run_deferred();
  void run_timers();
  int wait_ms() const;

  Fd epoll_, wake_;
  uint64_t next_id_ = 1;
  std::unordered_map<uint64_t, Watch> watches_;
  std::map<std::pair<Clock::time_point, uint64_t>, Work> timers_;
  std::unordered_map<uint64_t, Clock::time_point> timer_times_;
  std::vector<Work> deferred_;
  std::mutex mutex_;
  std::vector<Work> posted_;
  bool stopping_ = false;
};

}  // namespace mtl::ssh
