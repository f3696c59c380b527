// Signals as something to read: while it lives, the signals that a launcher cares about arrive as
// bytes on a descriptor. Handlers with a pipe, not signalfd: other threads of the process (a store
// server) need not have them blocked.
#pragma once

#include <csignal>
#include <string>
#include <vector>

#include "common/files.h"

namespace mtl {

class SignalPipe {
 public:
  // Throws Error if another one lives in this process.
  SignalPipe();
  // Puts the previous handlers back.
  ~SignalPipe();
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;

  int fd() const { return read_.get(); }
  // The signals that have arrived, oldest first.
  std::vector<int> take();

 private:
  struct Previous {
    int signal;
    struct sigaction action;
  };
  Fd read_, write_;
  std::vector<Previous> previous_;
  sigset_t mask_;  // of the thread that made it
};

// "SIGTERM"; "signal 40" for one without a name.
std::string signal_name(int signal);

}  // namespace mtl
