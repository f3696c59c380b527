// What a rank of mtl waits for: INT, TERM and USR2 to stop, USR1 for a checkpoint. The launcher
// starts it with these blocked, so that none comes before the rank takes them.
#pragma once

#include <initializer_list>
#include <signal.h>

namespace mtl {

// Also between fork and exec.
inline sigset_t rank_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2}) sigaddset(&set, signal);
  return set;
}

}  // namespace mtl
