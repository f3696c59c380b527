// Signals as something to read: while it lives, the signals that a launcher cares about arrive as
// bytes on a descriptor. Handlers with a pipe, not signalfd: other threads of the process (a store
// server) need not have them blocked.
#pragma once

#include <chrono>
#include <csignal>
#include <string>
#include <vector>

#include "common/files.h"

namespace mtl {

class SignalPipe {
 public:
  // Of the same signal, sent again within it: timeout(1) signals its child and then their process
  // group.
  static constexpr std::chrono::milliseconds kOneRequest{300};

  // `holds_others`: other machines count on this process, so that a Ctrl-Z (SIGTSTP) does not stop
  // it but arrives here too. Throws Error if another one lives in this process.
  explicit SignalPipe(bool holds_others = false);
  // Puts the previous handlers back.
  ~SignalPipe();
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;

  int fd() const { return read_.get(); }
  // The signals that have arrived, oldest first. Of requests to stop those that repeat another are
  // left out: a HUP behind any, and an INT or TERM that a process sends within a moment of the same
  // one or of a HUP.
  std::vector<int> take();

 private:
  struct Previous {
    int signal;
    struct sigaction action;
  };
  bool is_repetition(int signal, bool typed);

  Fd read_, write_;
  std::vector<Previous> previous_;
  int asked_ = 0;  // the last request to stop that counted, 0 = none
  std::chrono::steady_clock::time_point asked_at_{};
  sigset_t mask_;  // of the thread that made it
};

// Has SIGUSR2 wait until somebody takes it, instead of ending this process: a scheduler sends it to
// every process of a job, also to one that has just begun. Before threads are made.
void hold_usr2();

// A signal that comes while no SignalPipe takes it, between one's end and the next one's start,
// waits while this lives. One that comes when all is over has nothing left to ask for.
class SignalsHeld {
 public:
  SignalsHeld() : before_(hold()) {}
  ~SignalsHeld();
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;
  // From now on also while a pipe lives, whose end puts the mask back. Gives the mask before.
  static sigset_t hold();

 private:
  const sigset_t before_;
};

// What is said when SIGTSTP is not obeyed.
inline constexpr const char* kNotStopped =
    "SIGTSTP (Ctrl-Z) is ignored: a launcher that stands still looks to the other machines like a "
    "dead one, and its ranks would be killed";

// What ranks are asked to stop with where a launcher is asked by `signal`: INT as it came, of which
// Python makes a KeyboardInterrupt, so that a program's `except` and `finally` run; else TERM.
inline int asking_signal(int signal) {
  return signal == SIGINT ? SIGINT : SIGTERM;
}

// "SIGTERM"; "signal 40" for one without a name.
std::string signal_name(int signal);

}  // namespace mtl
