#include "launcher/system/run_command.h"

#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <unistd.h>

#include <sys/wait.h>

#include "common/files.h"

extern char** environ;

namespace mtl {

namespace {

using Clock = std::chrono::steady_clock;

struct Pipe {
  Fd read, write;
  bool open() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    read = Fd(ends[0]);
    write = Fd(ends[1]);
    return true;
  }
};

// False at its end.
bool drain(int fd, std::string& text) {
  char buffer[16384];
  const ssize_t got = read(fd, buffer, sizeof buffer);
  if (got > 0) text.append(buffer, static_cast<size_t>(got));
  return got > 0 || (got < 0 && (errno == EINTR || errno == EAGAIN));
}

}  // namespace

CommandAnswer run_command(const std::vector<std::string>& argv, std::chrono::milliseconds within,
                          const std::function<bool(std::string_view)>& keeps) {
  CommandAnswer answer;
  Pipe out, err;
  if (!out.open() || !err.open()) {
    answer.code = 126;
    answer.err = "no pipe for " + argv[0];
    return answer;
  }
  std::vector<char*> words;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  std::vector<char*> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (!keeps || keeps(*entry)) variables.push_back(*entry);
  }
  variables.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.write.get(), 1);
  posix_spawn_file_actions_adddup2(&actions, err.write.get(), 2);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // A mask or ignored signals of ours are none of its business; Ctrl-C is for us. But who ignores
  // SIGTERM expects one for all that runs here (SLURM's), and `within` ends the command.
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  sigdelset(&all, SIGTERM);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  pid_t pid = -1;
  const int failed =
      posix_spawnp(&pid, words[0], &actions, &attributes, words.data(), variables.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  out.write.reset();
  err.write.reset();
  if (failed != 0) {
    answer.missing = failed == ENOENT;
    answer.code = failed == ENOENT ? 127 : 126;
    answer.err = argv[0] + " cannot be started";
    return answer;
  }
  const auto until = Clock::now() + within;
  pollfd ends[2] = {{out.read.get(), POLLIN, 0}, {err.read.get(), POLLIN, 0}};
  while (ends[0].fd >= 0 || ends[1].fd >= 0) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
    if (left.count() <= 0) {
      answer.late = true;
      kill(-pid, SIGKILL);
      break;
    }
    if (poll(ends, 2, static_cast<int>(left.count())) < 0 && errno != EINTR) break;
    for (int i = 0; i < 2; ++i) {
      if (ends[i].revents != 0 && !drain(ends[i].fd, i == 0 ? answer.out : answer.err)) {
        ends[i].fd = -1;
      }
      ends[i].revents = 0;
    }
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  answer.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return answer;
}

}  // namespace mtl
