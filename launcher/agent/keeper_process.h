// The keeper's own process (keeper.h): what the fork of the agent does until its end. Between a
// worker's fork and its execve nothing takes memory, so what is needed there is made before.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "launcher/agent/keeper.h"

namespace mtl {

class KeeperProcess {
 public:
  // Before the fork. `launches` outlives it. `lease_ns`: when the lease ends
  // (CLOCK_BOOTTIME); 0 = it never does.
  KeeperProcess(const std::vector<Launch>& launches, int channel, pid_t agent, int64_t lease_ns);
  // Runs in the forked process with every signal blocked.
  [[noreturn]] void run();

 private:
  void spawn_all();
  // The pipes' ends and whatever else the agent had open stay open as long as somebody has them.
  void drop_descriptors();
  void send(const KeeperEvent& event);
  void read_exec_failures();
  void read_signals();
  void read_commands();
  void obey(const KeeperCommand& command);
  // 0 = none.
  void set_lease(int64_t until_ns);
  bool is_lease_over() const;
  void end_lease();
  void abandon();
  void sweep(int signal);
  // Adopted = children that are no workers: what a dead parent left to the subreaper. When one of
  // them dies, its own children become ours, so that direct children are all there is to look at.
  void signal_adopted();
  // True when nothing is left.
  bool reap();

  const std::vector<Launch>& launches_;
  int channel_;
  pid_t agent_;
  int signals_ = -1;
  int exec_failures_ = -1;
  int lease_timer_ = -1;
  int64_t lease_ns_;  // when it ends; 0 = never
  int sweep_signal_ = 0;
  std::vector<pid_t> workers_;
  std::vector<pid_t> signalled_;
  std::vector<KeeperEvent> batch_;
  std::vector<std::vector<char*>> argv_, env_;
  std::vector<std::vector<std::pair<int, int>>> moves_;  // descriptor in the worker <- here
};

}  // namespace mtl
