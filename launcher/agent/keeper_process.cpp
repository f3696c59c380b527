#include "launcher/agent/keeper_process.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <fcntl.h>
#include <iterator>
#include <poll.h>
#include <unistd.h>

#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>

#include "common/rank_signals.h"

namespace mtl {

namespace {

struct ExecFailure {
  int32_t index;
  int32_t kind;  // of the KeeperEvent
  int32_t error;
};

constexpr int kPreferNode = 1;  // MPOL_PREFERRED; its header is not part of libc

// Every descriptor from `first` on is closed by the next execve.
void close_on_exec_from(int first) {
  if (close_range(static_cast<unsigned>(first), ~0U, CLOSE_RANGE_CLOEXEC) == 0) return;
  const long limit = std::min(sysconf(_SC_OPEN_MAX), 1L << 16);  // before Linux 5.11
  for (int fd = first; fd < limit; ++fd) fcntl(fd, F_SETFD, FD_CLOEXEC);
}

void close_from(int first, int last) {
  if (first > last) return;
  if (close_range(static_cast<unsigned>(first), static_cast<unsigned>(last), 0) == 0) return;
  const int limit = std::min(last, static_cast<int>(std::min(sysconf(_SC_OPEN_MAX), 1L << 16)));
  for (int fd = first; fd <= limit; ++fd) close(fd);
}

void default_signals() {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (int s = 1; s < NSIG; ++s) sigaction(s, &action, nullptr);
}

// SLURM sends its warning to every process of a step, and its default is death. The agent has heard
// it and asks the workers to stop; those that want to hear it themselves take it.
void ignore_slurm_warning() {
  if (std::getenv("SLURM_JOB_ID") == nullptr) return;
  struct sigaction action {};
  action.sa_handler = SIG_IGN;
  sigaction(SIGUSR2, &action, nullptr);
}

// In the worker, between fork and execve.
[[noreturn]] void become_worker(const Launch& launch, int index,
                                std::vector<std::pair<int, int>>& moves, int exec_pipe,
                                pid_t keeper, char* const* argv, char* const* env) {
  setsid();  // a Ctrl-C at the terminal reaches the agent only
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != keeper) _exit(128 + SIGKILL);  // it died before the line above
  close_on_exec_from(3);
  // First out of each other's way, then to their places: a source may sit where a target goes.
  int above = 3;
  for (const auto& [target, source] : moves) above = std::max(above, target + 1);
  int error = 0;
  if (const int moved = fcntl(exec_pipe, F_DUPFD_CLOEXEC, above); moved >= 0) exec_pipe = moved;
  for (auto& [target, source] : moves) {
    source = fcntl(source, F_DUPFD_CLOEXEC, above);
    if (source < 0) error = errno;
  }
  for (const auto& [target, source] : moves) {
    if (error == 0 && dup2(source, target) < 0) error = errno;
  }
  int kind = KeeperEvent::not_executed;
  if (error == 0 && !launch.cpus.empty() &&
      syscall(SYS_sched_setaffinity, 0, launch.cpus.size() * sizeof(long), launch.cpus.data()) <
          0) {
    error = errno;
    kind = KeeperEvent::not_bound;
  }
  if (!launch.nodes.empty()) {
    // Only a preference: containers refuse it, and the first touch is local anyway.
    syscall(SYS_set_mempolicy, kPreferNode, launch.nodes.data(),
            launch.nodes.size() * 8 * sizeof(long) + 1);
  }
  if (error == 0) {
    ignore_slurm_warning();
    sigset_t blocked;  // the handlers are the keeper's: the system's
    sigemptyset(&blocked);
    if (launch.takes_signals) blocked = rank_signals();
    sigprocmask(SIG_SETMASK, &blocked, nullptr);
    execve(launch.program.c_str(), argv, env);
    error = errno;
  }
  const ExecFailure failure{index, kind, error};
  if (write(exec_pipe, &failure, sizeof failure) < 0) _exit(error == ENOENT ? 127 : 126);
  _exit(error == ENOENT ? 127 : 126);
}

}  // namespace

KeeperProcess::KeeperProcess(const std::vector<Launch>& launches, int channel, pid_t agent,
                             int64_t lease_ns)
    : launches_(launches), channel_(channel), agent_(agent), lease_ns_(lease_ns) {
  const size_t count = launches.size();
  workers_.assign(count, -1);
  batch_.reserve(count);
  signalled_.reserve(256);
  argv_.resize(count);
  env_.resize(count);
  moves_.resize(count);
  for (size_t i = 0; i < count; ++i) {
    // execve's signature predates const; nothing writes through these pointers.
    for (const std::string& text : launches[i].argv) {
      argv_[i].push_back(const_cast<char*>(text.c_str()));
    }
    argv_[i].push_back(nullptr);
    for (const std::string& text : launches[i].env) {
      env_[i].push_back(const_cast<char*>(text.c_str()));
    }
    env_[i].push_back(nullptr);
  }
}

void KeeperProcess::run() {
  setsid();
  prctl(PR_SET_NAME, "mtl-keeper");
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  default_signals();
  sigset_t watched;
  sigemptyset(&watched);
  sigaddset(&watched, SIGCHLD);
  sigaddset(&watched, SIGTERM);
  prctl(PR_SET_PDEATHSIG, SIGTERM);  // the closed channel says the same; two are safer than one
  signals_ = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
  // A timeout of poll() would not count the time that the machine sleeps.
  lease_timer_ = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
  if (getppid() != agent_ || signals_ < 0 || lease_timer_ < 0) _exit(1);
  spawn_all();
  drop_descriptors();
  set_lease(lease_ns_);
  for (;;) {
    pollfd polled[4] = {{signals_, POLLIN, 0},
                        {channel_, POLLIN, 0},
                        {exec_failures_, POLLIN, 0},
                        {lease_timer_, POLLIN, 0}};
    if (poll(polled, 4, -1) < 0 && errno != EINTR) _exit(1);
    // Before anything else: whoever counts us as lost may have gone on already. An extension that
    // waits to be read holds all the same: it was granted.
    if (is_lease_over()) {
      read_commands();
      if (is_lease_over()) end_lease();
    }
    // Failures of execve before the deaths that follow from them.
    if (polled[2].revents != 0) read_exec_failures();
    if (polled[0].revents != 0) read_signals();
    if (polled[1].revents != 0) read_commands();
    if (reap()) {
      send({KeeperEvent::all_gone, 0, 0, 0, 0, 0, 0});
      _exit(0);
    }
  }
}

void KeeperProcess::spawn_all() {
  int exec_pipe[2];
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null < 0 || pipe2(exec_pipe, O_CLOEXEC | O_NONBLOCK) != 0) _exit(1);
  exec_failures_ = exec_pipe[0];
  const pid_t self = getpid();
  for (size_t i = 0; i < launches_.size(); ++i) {
    moves_[i].assign({{0, null}, {1, launches_[i].out}, {2, launches_[i].err}});
    for (const auto& entry : launches_[i].inherit) moves_[i].push_back(entry);
    const int index = static_cast<int>(i);
    // Not vfork: it copies nothing and saves 15 % of the CPU time of a launch, but we would stand
    // still until each execve, and 8 workers start 6 ms later on a busy machine.
    const pid_t pid = fork();
    if (pid == 0) {
      become_worker(launches_[i], index, moves_[i], exec_pipe[1], self, argv_[i].data(),
                    env_[i].data());
    }
    workers_[i] = pid;
    send({pid > 0 ? KeeperEvent::spawned : KeeperEvent::not_spawned, index, pid,
          pid > 0 ? 0 : errno, 0, 0, 0});
  }
  close(exec_pipe[1]);
}

void KeeperProcess::drop_descriptors() {
  int kept[4] = {channel_, signals_, exec_failures_, lease_timer_};
  std::sort(std::begin(kept), std::end(kept));
  int next = 0;
  for (int fd : kept) {
    close_from(next, fd - 1);
    next = fd + 1;
  }
  close_from(next, INT32_MAX);
}

void KeeperProcess::send(const KeeperEvent& event) {
  while (channel_ >= 0 && ::send(channel_, &event, sizeof event, MSG_NOSIGNAL) < 0) {
    if (errno != EINTR) break;  // the agent is gone: read_commands() will see it
  }
}

void KeeperProcess::read_exec_failures() {
  ExecFailure failure;
  for (;;) {
    const ssize_t got = read(exec_failures_, &failure, sizeof failure);
    if (got == static_cast<ssize_t>(sizeof failure)) {
      send({failure.kind, failure.index, 0, failure.error, 0, 0, 0});
    } else if (got == 0) {  // every worker runs its program or is dead
      close(exec_failures_);
      exec_failures_ = -1;
      return;
    } else if (errno != EINTR) {
      return;
    }
  }
}

void KeeperProcess::read_signals() {
  signalfd_siginfo info;
  while (read(signals_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    if (info.ssi_signo == SIGTERM && getppid() != agent_) abandon();
  }
}

void KeeperProcess::read_commands() {
  while (channel_ >= 0) {
    KeeperCommand command;
    const ssize_t got = recv(channel_, &command, sizeof command, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got != static_cast<ssize_t>(sizeof command)) return abandon();
    obey(command);
  }
}

void KeeperProcess::obey(const KeeperCommand& command) {
  if (command.kind == KeeperCommand::lease) {
    set_lease(command.until_ns);
  } else if (command.kind == KeeperCommand::signal_workers) {
    for (size_t i = 0; i < workers_.size(); ++i) {
      const bool meant = command.index < 0 || static_cast<size_t>(command.index) == i;
      if (!meant || workers_[i] <= 0) continue;
      // A terminal's Ctrl-C reaches all of a process group, and a shell waits for its child to
      // hear it too. A rank leads one of its own.
      if (command.signal == SIGINT && kill(-workers_[i], SIGINT) == 0) continue;
      kill(workers_[i], command.signal);
    }
  } else {
    sweep(command.signal);
  }
}

void KeeperProcess::set_lease(int64_t until_ns) {
  lease_ns_ = until_ns;
  itimerspec when{};
  when.it_value.tv_sec = until_ns / 1'000'000'000;
  when.it_value.tv_nsec = until_ns % 1'000'000'000;
  timerfd_settime(lease_timer_, TFD_TIMER_ABSTIME, &when, nullptr);
}

bool KeeperProcess::is_lease_over() const {
  if (lease_ns_ == 0) return false;
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec >= lease_ns_;
}

void KeeperProcess::end_lease() {
  set_lease(0);
  if (sweep_signal_ == SIGKILL) return;
  sweep(SIGKILL);  // first: the agent may not be reading
  send({KeeperEvent::lease_over, 0, 0, 0, 0, 0, 0});
}

void KeeperProcess::abandon() {
  if (channel_ >= 0) close(channel_);
  channel_ = -1;
  sweep(SIGKILL);
}

void KeeperProcess::sweep(int signal) {
  if (sweep_signal_ == SIGKILL) return;
  sweep_signal_ = signal;
  signalled_.clear();
  if (signal == SIGKILL) {
    // A worker that is not reaped yet keeps its number, so these hit nobody else.
    for (pid_t pid : workers_) {
      if (pid <= 0) continue;
      kill(-pid, SIGKILL);
      kill(pid, SIGKILL);  // its setsid may still be ahead
    }
  }
  signal_adopted();
}

void KeeperProcess::signal_adopted() {
  for (pid_t pid : child_processes()) {
    if (std::find(workers_.begin(), workers_.end(), pid) != workers_.end()) continue;
    if (std::find(signalled_.begin(), signalled_.end(), pid) != signalled_.end()) continue;
    kill(pid, sweep_signal_);
    signalled_.push_back(pid);
  }
}

bool KeeperProcess::reap() {
  bool none_left = false;
  batch_.clear();
  for (;;) {
    siginfo_t info{};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG) != 0) {
      if (errno == EINTR) continue;
      none_left = errno == ECHILD;
      break;
    }
    if (info.si_pid == 0) break;
    const auto worker = std::find(workers_.begin(), workers_.end(), info.si_pid);
    if (worker == workers_.end()) {
      std::erase(signalled_, info.si_pid);
      continue;
    }
    *worker = 0;
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    const bool by_signal = info.si_code != CLD_EXITED;
    batch_.push_back({KeeperEvent::ended, static_cast<int32_t>(worker - workers_.begin()),
                      info.si_pid, by_signal ? 0 : info.si_status, by_signal ? info.si_status : 0,
                      info.si_code == CLD_DUMPED,
                      int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec});
  }
  // Of those found dead together, one killed by a signal is rather the cause than the effect.
  std::stable_sort(batch_.begin(), batch_.end(), [](const KeeperEvent& a, const KeeperEvent& b) {
    return (a.signal != 0) > (b.signal != 0);
  });
  // An execve that failed is told before the death that follows from it.
  if (!batch_.empty() && exec_failures_ >= 0) read_exec_failures();
  for (const KeeperEvent& event : batch_) send(event);
  if (sweep_signal_ != 0 && !none_left) signal_adopted();
  return none_left;
}

}  // namespace mtl
