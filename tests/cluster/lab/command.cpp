#include "cluster/lab/command.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <poll.h>
#include <sched.h>
#include <stdexcept>
#include <thread>
#include <unistd.h>

#include <sys/syscall.h>
#include <sys/wait.h>

#include "support/text.h"

extern char** environ;

namespace mtl::test {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> result;
  for (std::string& word : words) result.push_back(word.data());
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> environment(const std::map<std::string, std::string>& changes) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string name(*entry, std::strcspn(*entry, "="));
    if (!changes.contains(name)) result.emplace_back(*entry);
  }
  for (const auto& [name, value] : changes) result.push_back(name + "=" + value);
  return result;
}

// What the child does between fork and exec: system calls on data that was made before.
struct Start {
  const CommandPlace* place;
  const char* directory;
  const char* out;
  const char* err;
  char** argv;
  char** env;
  int report;  // the pid, for the one who waits

  [[noreturn]] static void fail(const char* what) {
    const char* reason = strerrordesc_np(errno);
    for (const char* part : {"lab: ", what, ": ", reason, "\n"}) {
      if (::write(2, part, std::strlen(part)) < 0) break;
    }
    _exit(127);
  }

  static void close_all(int first, int last) {
    if (first <= last) syscall(SYS_close_range, first, last, 0);
  }

  [[noreturn]] void exec() const {
    setpgid(0, 0);
    for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execvpe(argv[0], argv, env);
    fail(argv[0]);
  }

  [[noreturn]] void run() const {
    const int files[] = {open("/dev/null", O_RDONLY), open(out, O_WRONLY | O_CREAT | O_TRUNC, 0644),
                         open(err, O_WRONLY | O_CREAT | O_TRUNC, 0644)};
    for (int i = 0; i < 3; ++i) {
      if (files[i] < 0 || dup2(files[i], i) < 0) _exit(127);
    }
    // Nothing of the test's is held, the lab's socket least of all: it would outlive the test when
    // the machine freezes before the exec.
    const bool stays = place->namespaces < 0;
    const auto kept = std::minmax(stays ? report : place->namespaces, report);
    close_all(3, kept.first - 1);
    close_all(kept.first + 1, kept.second - 1);
    close_all(kept.second + 1, std::numeric_limits<int>::max());
    if (!place->cgroup_procs.empty()) {
      const int procs = open(place->cgroup_procs.c_str(), O_WRONLY | O_CLOEXEC);
      if (procs < 0 || ::write(procs, "0", 1) != 1) fail("cannot join the machine's cgroup");
    }
    int flags = CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWNS | CLONE_NEWIPC;
    if (place->own_pids) flags |= CLONE_NEWPID;
    if (!stays && setns(place->namespaces, flags) != 0) fail("cannot enter the machine");
    if (chdir(directory) != 0) fail(directory);
    // A process never changes its own pid namespace, so it takes one more. CLONE_PARENT makes that
    // one a child of the test, which then sees its end and its signals first hand.
    pid_t pid = getpid();
    if (place->own_pids) {
      pid = static_cast<pid_t>(syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0));
      if (pid < 0) fail("clone");
      if (pid == 0) exec();
    }
    if (::write(report, &pid, sizeof pid) != sizeof pid) _exit(127);
    if (place->own_pids) _exit(0);
    exec();
  }
};

}  // namespace

Command::Command(const CommandPlace& place, const std::vector<std::string>& argv,
                 const std::map<std::string, std::string>& env)
    : output_(place.output) {
  std::vector<std::string> words = argv;
  std::vector<std::string> variables = environment(env);
  std::vector<char*> argv_pointers = pointers(words);
  std::vector<char*> env_pointers = pointers(variables);
  const std::string out = output_.string() + ".out";
  const std::string err = output_.string() + ".err";
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0) throw std::runtime_error("lab: no pipe");
  const Start start{&place,
                    place.working_directory.c_str(),
                    out.c_str(),
                    err.c_str(),
                    argv_pointers.data(),
                    env_pointers.data(),
                    report[1]};
  started_ = Clock::now();
  const pid_t child = fork();
  if (child == 0) start.run();
  close(report[1]);
  const bool known = child > 0 && read(report[0], &pid_, sizeof pid_) == sizeof pid_;
  char none = 0;
  while (known && read(report[0], &none, 1) > 0) continue;  // until the exec closes it
  close(report[0]);
  if (child > 0 && (place.own_pids || !known)) waitpid(child, nullptr, 0);
  if (!known) throw std::runtime_error("lab: cannot start " + argv.front() + ": " + file_text(err));
  pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
}

Command::Command(Command&& other) noexcept
    : output_(std::move(other.output_)),
      pid_(other.pid_),
      pidfd_(other.pidfd_),
      over_(other.over_),
      status_(other.status_),
      started_(other.started_),
      ended_(other.ended_) {
  other.pid_ = -1;
  other.pidfd_ = -1;
  other.over_ = true;
}

Command::~Command() {
  if (pid_ > 0 && !over_) {
    ::kill(-pid_, SIGKILL);
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (pidfd_ >= 0) close(pidfd_);
}

void Command::signal(int number) const {
  if (pid_ > 0 && !over_) ::kill(pid_, number);
}

std::string Command::out() const {
  return file_text(output_.string() + ".out");
}
std::string Command::err() const {
  return file_text(output_.string() + ".err");
}

bool Command::running() {
  if (!over_ && waitpid(pid_, &status_, WNOHANG) == pid_) {
    over_ = true;
    ended_ = Clock::now();
  }
  return !over_;
}

bool Command::says(const std::string& text, std::chrono::milliseconds within) {
  const auto until = Clock::now() + within;
  for (;;) {
    const bool was_running = running();  // before the look, so that the last words count
    if (out().find(text) != std::string::npos || err().find(text) != std::string::npos) return true;
    if (!was_running || Clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

CommandEnd Command::wait(std::chrono::milliseconds within) {
  const auto until = Clock::now() + within;
  bool in_time = true;
  while (running()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
    if (left.count() <= 0) {
      in_time = false;
      ::kill(-pid_, SIGKILL);
      ::kill(pid_, SIGKILL);
      waitpid(pid_, &status_, 0);
      over_ = true;
      ended_ = Clock::now();
      break;
    }
    pollfd wait_for{pidfd_, POLLIN, 0};
    poll(&wait_for, 1, static_cast<int>(left.count()) + 1);
  }
  CommandEnd end;
  if (in_time) end.code = WIFSIGNALED(status_) ? 128 + WTERMSIG(status_) : WEXITSTATUS(status_);
  end.out = out();
  end.err = err();
  end.took = ended_ - started_;
  return end;
}

}  // namespace mtl::test
