#include "launcher/agent/keeper.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "launcher/agent/keeper_process.h"
#include "launcher/system/system_error.h"

namespace mtl {

namespace {

// The parent of a process, from /proc/PID/stat; the name in it may hold anything, also ')'.
pid_t parent_of(pid_t pid) {
  char path[32];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  char text[512];
  const ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  if (got <= 0) return -1;
  text[got] = 0;
  const char* end = strrchr(text, ')');
  return end != nullptr && strlen(end) > 4 ? static_cast<pid_t>(atoi(end + 4)) : -1;
}

}  // namespace

std::vector<pid_t> child_processes() {
  std::vector<pid_t> found;
  bool listed = false;
  DIR* tasks = opendir("/proc/self/task");
  while (const dirent* task = tasks != nullptr ? readdir(tasks) : nullptr) {
    char path[300];
    snprintf(path, sizeof path, "/proc/self/task/%s/children", task->d_name);
    const int fd = task->d_name[0] == '.' ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    listed = true;
    char text[4096];
    pid_t number = 0;
    ssize_t got;
    while ((got = read(fd, text, sizeof text)) > 0) {
      for (ssize_t i = 0; i < got; ++i) {
        if (text[i] >= '0' && text[i] <= '9') {
          number = number * 10 + (text[i] - '0');
        } else if (number > 0) {
          found.push_back(number);
          number = 0;
        }
      }
    }
    close(fd);
  }
  if (tasks != nullptr) closedir(tasks);
  if (listed) return found;
  // A kernel without that file: look at every process.
  const pid_t self = getpid();
  if (DIR* proc = opendir("/proc")) {
    while (const dirent* entry = readdir(proc)) {
      const pid_t pid = atoi(entry->d_name);
      if (pid > 0 && parent_of(pid) == self) found.push_back(pid);
    }
    closedir(proc);
  }
  return found;
}

Keeper::Keeper(const std::vector<Launch>& launches, std::optional<std::chrono::nanoseconds> lease) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    throw system_error("cannot make a socket pair", errno);
  }
  channel_ = Fd(ends[0]);
  Fd theirs(ends[1]);
  foreign_ = child_processes();
  prctl(PR_GET_CHILD_SUBREAPER, &was_subreaper_);
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // should the keeper be killed, its descendants come here
  KeeperProcess keeper(launches, theirs.get(), getpid(), lease ? lease->count() : 0);
  // The agent's handlers must not run in the keeper.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pid_ = fork();
  if (pid_ == 0) keeper.run();
  const int error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid_ < 0) {
    prctl(PR_SET_CHILD_SUBREAPER, was_subreaper_);
    throw system_error("cannot start a process", error);
  }
}

Keeper::Receive Keeper::receive(KeeperEvent& event) {
  for (;;) {
    const ssize_t got = recv(channel_.get(), &event, sizeof event, MSG_DONTWAIT);
    if (got == static_cast<ssize_t>(sizeof event)) return Receive::event;
    // Reset: it ended with a command of ours unread; what it had said before is still to come.
    if (got < 0 && (errno == EINTR || errno == ECONNRESET)) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Receive::nothing;
    return Receive::closed;
  }
}

void Keeper::send(const KeeperCommand& command) {
  while (::send(channel_.get(), &command, sizeof command, MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

bool Keeper::extend(std::chrono::nanoseconds lease) {
  KeeperCommand command;
  command.kind = KeeperCommand::lease;
  command.until_ns = lease.count();
  return ::send(channel_.get(), &command, sizeof command, MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
}

// What came to this process because the keeper was killed: workers, dead by their PDEATHSIG, and
// what they had started.
void Keeper::kill_adopted() {
  const timespec nap{0, 2'000'000};
  for (int i = 0; i < 1'000; ++i) {
    bool left = false;
    for (pid_t pid : child_processes()) {
      if (std::find(foreign_.begin(), foreign_.end(), pid) != foreign_.end()) continue;
      kill(pid, SIGKILL);
      left |= waitpid(pid, nullptr, WNOHANG) == 0;
    }
    // What a killed one leaves behind arrives with its death: look once more after the last.
    if (!left && child_processes().size() <= foreign_.size()) return;
    nanosleep(&nap, nullptr);
  }
}

Keeper::~Keeper() {
  channel_.reset();  // the keeper kills and reaps what is left, and ends
  const Fd handle(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));  // glibc 2.36: C only
  pollfd ended{handle.get(), POLLIN, 0};
  while (poll(&ended, 1, 5'000) < 0 && errno == EINTR) {
  }
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) == pid_ && !(WIFEXITED(status) && WEXITSTATUS(status) == 0)) {
    kill_adopted();
  }
  prctl(PR_SET_CHILD_SUBREAPER, was_subreaper_);
}

}  // namespace mtl
