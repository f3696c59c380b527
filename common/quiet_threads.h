// Threads that take no signals: those are the business of the thread that waits for them, and a
// write to a pipe that is closed at its other end is to be an error code, not SIGPIPE.
#pragma once

#include <csignal>

namespace mtl {

// While it lives, the calling thread blocks all signals; threads that it starts inherit that, and
// keep it.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_ = {};
};

}  // namespace mtl
