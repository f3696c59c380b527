// The keeper: the workers' parent process, a small fork of the agent. It is the child subreaper of
// everything that they start, so that no descendant gets out of reach by changing its session or
// losing its parent. It knows five things: spawn, signal, reap, kill all of them when the agent is
// gone, and kill them when a lease ends that the agent did not extend: an agent that is stopped or
// swapped out cannot end its workers itself, and the job goes on without them then. It talks with
// the agent over a socket in the fixed-size records below.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "common/error.h"
#include "common/files.h"

namespace mtl {

// A worker ready to be started: everything that needs memory is done before the fork.
struct Launch {
  std::string program;                       // path for execve
  std::string path;                          // the PATH in which it was found
  std::vector<std::string> argv;             // as given
  std::vector<std::string> env;              // NAME=value
  std::vector<std::pair<int, int>> inherit;  // descriptor in the worker <- here
  bool takes_signals = false;                // begins with some blocked (JobProgram)
  int out = -1;                              // write end that becomes its stdout
  int err = -1;                              // ... stderr
  std::vector<unsigned long> cpus;           // bits: what it may run on; empty = as the agent
  std::vector<unsigned long> nodes;          // bits: whose memory it prefers; empty = any
};

struct KeeperEvent {
  enum Kind : int32_t {
    spawned,       // worker `index` is process `pid`
    not_spawned,   // fork failed with `status` as errno
    not_executed,  // execve (or preparing its descriptors) failed with `status` as errno
    not_bound,     // binding it to its CPUs failed with `status` as errno
    ended,         // worker `index` died: `status` is its exit code, `signal` its signal or 0
    lease_over,    // all workers are killed: comes before their ends
    all_gone,      // no worker and no descendant is left; the keeper ends
  };
  int32_t kind = 0;
  int32_t index = 0;
  int32_t pid = 0;
  int32_t status = 0;
  int32_t signal = 0;
  int32_t dumped_core = 0;
  int64_t when_ns = 0;  // since the epoch
};

struct KeeperCommand {
  enum Kind : int32_t {
    signal_workers,  // `signal` to each worker process that still runs, or to worker `index` only
    sweep,           // `signal` also to what dead workers left behind, now and from now on;
                     // with SIGKILL: to every worker's process group as well
    lease,           // the lease ends at `until_ns` (CLOCK_BOOTTIME): a sweep with SIGKILL then
  };
  int32_t kind = 0;
  int32_t signal = 0;
  int32_t index = -1;
  int64_t until_ns = 0;
};

class Keeper {
 public:
  // Forks the keeper, which starts the workers. `lease`: when it ends (CLOCK_BOOTTIME); nothing =
  // it never does, until one is sent. Throws Error (Exit::environment) if it cannot.
  explicit Keeper(const std::vector<Launch>& launches,
                  std::optional<std::chrono::nanoseconds> lease = {});
  // Ends whatever is left: the keeper sees the closed channel, kills all, ends. Not waited for
  // longer than a few seconds (a process in uninterruptible sleep cannot be ended by anyone).
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  int fd() const { return channel_.get(); }  // readable = an event, or the keeper's death
  enum class Receive { event, nothing, closed };
  Receive receive(KeeperEvent& event);
  void send(const KeeperCommand& command);
  // Extends the lease; false if the keeper does not read now. Never blocks.
  bool extend(std::chrono::nanoseconds lease);

 private:
  void kill_adopted();

  Fd channel_;
  pid_t pid_ = -1;
  std::vector<pid_t> foreign_;  // children of this process that are not the keeper's
  int was_subreaper_ = 0;
};

// The direct children of this process, born or adopted.
std::vector<pid_t> child_processes();

}  // namespace mtl
