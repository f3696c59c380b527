#include "launcher/agent/signals.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include "launcher/agent/keeper.h"
#include "launcher/system/system_error.h"

namespace mtl {

namespace {

// A handler has no other way to know where to write; -1 = no SignalPipe lives.
std::atomic<int> signal_pipe{-1};
static_assert(std::atomic<int>::is_always_lock_free);

// On the way from the handler: typed at the terminal, not sent by a process.
constexpr unsigned char kTyped = 0x80;

void note_signal(int signal, siginfo_t* info, void* /*context*/) {
  const int saved = errno;
  const auto byte = static_cast<unsigned char>(signal | (info->si_code == SI_KERNEL ? kTyped : 0));
  if (write(signal_pipe.load(), &byte, 1) < 0) {
    // Full: thousands are waiting already.
  }
  errno = saved;
}

sigset_t held_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2})
    sigaddset(&set, signal);
  return set;
}

}  // namespace

SignalPipe::SignalPipe(bool holds_others) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) throw system_error("cannot make a pipe", errno);
  read_ = Fd(ends[0]);
  write_ = Fd(ends[1]);
  int none = -1;
  if (!signal_pipe.compare_exchange_strong(none, write_.get())) {
    throw Error(Exit::environment,
                Diagnostic{.code = "launch.busy",
                           .what = "this process already supervises a group of workers"});
  }
  sigset_t watched;
  sigemptyset(&watched);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP}) {
    if (signal == SIGTSTP && !holds_others) continue;
    Previous previous{signal, {}};
    sigaction(signal, nullptr, &previous.action);
    // nohup, or a shell's background job: who ignores these wants them ignored.
    const bool ignored = previous.action.sa_handler == SIG_IGN;
    if (ignored && (signal == SIGHUP || signal == SIGINT || signal == SIGQUIT)) continue;
    struct sigaction action {};
    action.sa_sigaction = note_signal;
    action.sa_flags = SA_RESTART | SA_SIGINFO;
    sigfillset(&action.sa_mask);
    sigaction(signal, &action, nullptr);
    sigaddset(&watched, signal);
    previous_.push_back(previous);
  }
  pthread_sigmask(SIG_UNBLOCK, &watched, &mask_);
}

SignalPipe::~SignalPipe() {
  pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  for (const Previous& previous : previous_) sigaction(previous.signal, &previous.action, nullptr);
  if (write_) signal_pipe.store(-1);
}

std::vector<int> SignalPipe::take() {
  std::vector<int> signals;
  unsigned char bytes[64];
  ssize_t got;
  while ((got = read(read_.get(), bytes, sizeof bytes)) > 0) {
    for (ssize_t i = 0; i < got; ++i) {
      const int signal = bytes[i] & ~kTyped;
      if (!is_repetition(signal, (bytes[i] & kTyped) != 0)) signals.push_back(signal);
    }
  }
  return signals;
}

bool SignalPipe::is_repetition(int signal, bool typed) {
  if (signal != SIGINT && signal != SIGTERM && signal != SIGHUP) return false;
  const auto now = std::chrono::steady_clock::now();
  if (asked_ != 0) {
    // Of a closed window: the kernel, the shell and the session's manager each tell it.
    if (signal == SIGHUP) return true;
    const bool same = signal == asked_ || asked_ == SIGHUP;
    if (same && !typed && now - asked_at_ < kOneRequest) return true;
  }
  asked_ = signal;
  asked_at_ = now;
  return false;
}

void hold_usr2() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

sigset_t SignalsHeld::hold() {
  const sigset_t held = held_signals();
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &held, &before);
  return before;
}

SignalsHeld::~SignalsHeld() {
  const sigset_t held = held_signals();
  const timespec at_once{};
  while (sigtimedwait(&held, nullptr, &at_once) > 0) continue;
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

}  // namespace mtl
