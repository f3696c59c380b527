// Finds workers that somebody has stopped (SIGSTOP, job control): they neither die nor go on, and
// the others wait for them. A debugger's stop is another state and does not count.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include <sys/types.h>

namespace mtl {

// Whether all threads of a process are in state T.
bool process_stopped(pid_t pid);

class StoppedWatch {
 public:
  using Clock = std::chrono::steady_clock;
  struct Found {
    size_t worker;
    std::chrono::system_clock::time_point since;
  };
  using IsStopped = std::function<bool(pid_t)>;

  // A worker counts when it was stopped for `limit` in every sample; 0 = nothing is sampled.
  explicit StoppedWatch(std::chrono::milliseconds limit, IsStopped is_stopped = process_stopped);

  // When to sample next; none = never.
  std::optional<Clock::time_point> next() const;
  // Of these workers (0 = not to be looked at) the ones that count by now, longest stopped first.
  // If the samples are far apart, whoever takes them was stopped as well, or the machine was not
  // there: then all counting starts again.
  std::vector<Found> sample(const std::vector<pid_t>& pids, Clock::time_point now);

 private:
  struct Since {
    Clock::time_point steady;
    std::chrono::system_clock::time_point system;
  };
  std::chrono::milliseconds limit_;
  std::chrono::milliseconds interval_;
  IsStopped is_stopped_;
  std::optional<Clock::time_point> last_;
  Clock::time_point next_;
  std::map<size_t, Since> since_;  // by worker
};

}  // namespace mtl
