// Helpers of the tests with real processes: bounded waits, a folder that goes away, descriptors
// counted.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <dirent.h>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <sys/wait.h>

#include "launcher/agent.h"
#include "support/temp_dir.h"

namespace mtl::test {

// A hang fails the test instead of stopping the suite; far above what any step needs, also where
// the machine stands still for half a minute.
inline constexpr int kPatienceSeconds = 180;

inline bool wait_for(const std::function<bool()>& happened, int seconds = kPatienceSeconds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (!happened()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

// A file of /proc; what there is of it if its process ends meanwhile (a stream would throw).
inline std::string proc_text(const std::string& path) {
  std::string text;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  char buffer[4096];
  ssize_t got = 0;
  while (fd >= 0 && (got = read(fd, buffer, sizeof buffer)) > 0) {
    text.append(buffer, static_cast<size_t>(got));
  }
  if (fd >= 0) close(fd);
  return text;
}

// False for a zombie as well: it runs no more.
inline bool alive(pid_t pid) {
  const std::string text = proc_text("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = text.rfind(')');
  return name_end != std::string::npos && text[name_end + 2] != 'Z' && text[name_end + 2] != 'X';
}

inline std::string content(const std::filesystem::path& path) {
  return proc_text(path);
}

inline void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// A pid that a worker wrote into a file; 0 after too long a wait.
inline pid_t pid_in(const std::filesystem::path& path) {
  pid_t pid = 0;
  wait_for([&] {
    const std::string text = content(path);
    pid = text.ends_with('\n') ? std::stoi(text) : 0;
    return pid > 0;
  });
  return pid;
}

inline int open_descriptors() {
  int count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
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
  options.grace = std::chrono::seconds(kPatienceSeconds);
  return options;
}

// A child of the test that runs `body` and ends with its result; killed if it is still there when
// the test is over.
class Child {
 public:
  explicit Child(const std::function<int()>& body) {
    pid_ = fork();
    if (pid_ == 0) {
      alarm(3 * kPatienceSeconds);
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
    const bool ended = wait_for([&] { return waitpid(pid_, &status, WNOHANG) == pid_; });
    if (!ended) return -1;
    pid_ = -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

 private:
  pid_t pid_ = -1;
};

}  // namespace mtl::test
