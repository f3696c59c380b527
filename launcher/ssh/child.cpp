#include "launcher/ssh/child.h"

#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

namespace mtl::ssh {

Child::Child(const std::vector<std::string>& argv, int input_output, int errors) {
  std::vector<char*> arguments;
  for (const std::string& text : argv) arguments.push_back(const_cast<char*>(text.c_str()));
  arguments.push_back(nullptr);
  const Fd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (errors < 0) errors = null.get();
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(128 + SIGKILL);
    // Out of the way of 0 to 2 first: any of these may sit there.
    const int talk = fcntl(input_output, F_DUPFD_CLOEXEC, 3);
    const int err = fcntl(errors, F_DUPFD_CLOEXEC, 3);
    if (talk < 0 || err < 0 || dup2(talk, 0) < 0 || dup2(talk, 1) < 0 || dup2(err, 2) < 0) {
      _exit(127);
    }
    struct sigaction action {};
    action.sa_handler = SIG_DFL;
    for (int s = 1; s < NSIG; ++s) sigaction(s, &action, nullptr);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    // Whatever else the process has open must not live on in here.
    syscall(SYS_close_range, 3U, ~0U, 4U /* CLOSE_RANGE_CLOEXEC */);
    execv(arguments[0], arguments.data());
    _exit(errno == ENOENT ? 127 : 126);
  }
  if (pid_ > 0) ended_ = Fd(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), ended_(std::move(other.ended_)) {}

Child& Child::operator=(Child&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(ended_, other.ended_);
  return *this;
}

Child::~Child() {
  if (pid_ <= 0) return;
  kill(-pid_, SIGKILL);
  kill(pid_, SIGKILL);  // its setsid may still be ahead
  reap();
}

int Child::reap() {
  int status = 0;
  while (pid_ > 0 && waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return status;
}

}  // namespace mtl::ssh
