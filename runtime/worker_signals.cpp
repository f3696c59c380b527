#include "runtime/worker_signals.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <signal.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "common/error.h"
#include "common/rank_signals.h"

namespace mtl::signals {

namespace {

std::atomic<bool> stop{false};
std::atomic<bool> checkpoint{false};
std::atomic<bool> at_once{true};

std::mutex ending;
std::function<void()> last_word;

// The lock is kept: whoever is second waits for the end.
[[noreturn]] void end_here() {
  ending.lock();
  try {
    if (last_word) last_word();
  } catch (const std::exception&) {
    // It was asked to end, and ends.
  }
  std::_Exit(static_cast<int>(Exit::requeue));
}

}  // namespace

// Signals wait for a thread of their own: one that arrives within a matmul has been seen to spoil
// the heap (oneDNN 2.6.3 with AMX in a virtual machine, also in a program of nothing but a matmul
// and an alarm). mtl launch starts ranks with these blocked, so that none comes too early.
void receive() {
  const sigset_t set = rank_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGUSR2, SIG_DFL);  // under SLURM it is ignored until somebody is here to take it
  std::thread([set] {
    siginfo_t info;
    bool asked = false;  // by somebody other than the parent
    std::chrono::steady_clock::time_point asked_at;
    for (int signal = 0; (signal = sigwaitinfo(&set, &info)) > 0 || errno == EINTR;) {
      if (signal <= 0) continue;
      if (signal == SIGUSR1) {
        checkpoint = true;
        continue;
      }
      stop = true;
      if (at_once) end_here();
      if (signal == SIGUSR2 || info.si_pid == getppid()) continue;
      // timeout(1) sends its signal to its child and then to their process group.
      const auto now = std::chrono::steady_clock::now();
      if (asked && now - asked_at < std::chrono::milliseconds(300)) continue;
      asked_at = now;
      if (std::exchange(asked, true)) {
        ::signal(signal, SIG_DFL);
        pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
        raise(signal);
      }
    }
  }).detach();
}

void obey(Obey how) {
  at_once = how == Obey::at_once;
  if (at_once && stop) end_here();
}

void before_end(std::function<void()> what) {
  const std::scoped_lock lock(ending);
  last_word = std::move(what);
}

bool stop_requested() {
  return stop;
}

bool take_checkpoint() {
  return checkpoint.exchange(false);
}

}  // namespace mtl::signals
