// Workers that are shell scripts, and children of a test.
#pragma once

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <unistd.h>
#include <vector>

#include <sys/wait.h>

#include "launcher/agent/agent.h"
#include "support/processes.h"
#include "support/temp_dir.h"

namespace mtl::test {

inline void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline WorkerCommand shell(int rank, const std::string& script) {
  WorkerCommand command;
  command.rank = rank;
  command.local_rank = rank;
  command.argv = {"/bin/sh", "-c", script};
  command.env["RANK"] = std::to_string(rank);
  return command;
}

inline AgentOptions shells(const std::vector<std::string>& scripts) {
  AgentOptions options;
  for (size_t i = 0; i < scripts.size(); ++i) {
    options.workers.push_back(shell(static_cast<int>(i), scripts[i]));
  }
  options.logs.console_default = 0;
  options.grace = kPatience;
  return options;
}

// A child of the test that runs `body` and ends with its result; killed if it is still there when
// the test is over.
class Child {
 public:
  explicit Child(const std::function<int()>& body) {
    // With ThreadSanitizer _exit() writes what is buffered, too: the child's is none.
    fflush(stdout);
    pid_ = fork();
    if (pid_ == 0) {
      alarm(static_cast<unsigned>(3 * kPatience.count()));
      _exit(body());
    }
  }
  ~Child() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  pid_t pid() const { return pid_; }
  // 128 + n for a signal, -1 if it does not end.
  int wait() {
    int status = 0;
    const bool ended = wait_until([&] { return waitpid(pid_, &status, WNOHANG) == pid_; });
    if (!ended) return -1;
    pid_ = -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

 private:
  pid_t pid_ = -1;
};

}  // namespace mtl::test
