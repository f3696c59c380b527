// Runs the real mtl in a process of its own and keeps what it said.
#pragma once

#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <map>
#include <poll.h>
#include <signal.h>
#include <string>
#include <unistd.h>
#include <vector>

#include <sys/syscall.h>
#include <sys/wait.h>

#include "support/temp_dir.h"
#include "support/text.h"

namespace mtl::test {

struct Outcome {
  int code = -1;  // exit code, or 128 + signal
  std::string out;
  std::string err;
};

// accelerate's own files, where somebody has put them.
inline const std::filesystem::path kAccelerateSamples =
    std::filesystem::path(MTL_SOURCE_DIR) / "../shared/data/accelerate";

// Where a Shell's mtl config writes, in its directory.
inline const char* const kDefaultConfig = "xdg/mtl/default_config.yaml";

// A scratch directory with HF_HOME and XDG_CONFIG_HOME inside, so that no settings of the machine
// leak into a test, and a way to run mtl there.
class Shell {
 public:
  const std::filesystem::path& dir() const { return dir_.path(); }

  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((dir() / name).parent_path());
    std::ofstream(dir() / name, std::ios::binary) << text;
  }

  // A text that stands in that file, by another one.
  void replace(const std::string& name, const std::string& from, const std::string& to) const {
    std::string text = file_text(dir() / name);
    text.replace(text.find(from), from.size(), to);
    write(name, text);
  }

  Outcome mtl(const std::vector<std::string>& args,
              const std::map<std::string, std::string>& env = {}) const {
    std::vector<std::string> argv = {MTL_PROGRAM};
    argv.insert(argv.end(), args.begin(), args.end());
    return run(argv, env);
  }

  Outcome run(const std::vector<std::string>& argv,
              const std::map<std::string, std::string>& env = {}) const {
    const pid_t pid = start(argv, env);
    return finish(pid);
  }

  // Starts without waiting; finish() gives the outcome. One at a time.
  pid_t start(const std::vector<std::string>& argv,
              const std::map<std::string, std::string>& env = {}) const {
    std::vector<char*> words;
    for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    const pid_t pid = fork();
    if (pid != 0) return pid;
    // Only what may follow a fork in a program without threads.
    redirect(0, "/dev/null", O_RDONLY);
    redirect(1, (dir() / "stdout.txt").string(), O_WRONLY | O_CREAT | O_TRUNC);
    redirect(2, (dir() / "stderr.txt").string(), O_WRONLY | O_CREAT | O_TRUNC);
    if (chdir(dir().c_str()) != 0) _exit(99);
    setenv("HF_HOME", (dir() / "hf").c_str(), 1);
    setenv("XDG_CONFIG_HOME", (dir() / "xdg").c_str(), 1);
    for (const char* name : {"NO_COLOR", "CLICOLOR_FORCE", "FORCE_COLOR", "COLUMNS"})
      unsetenv(name);
    setenv("MTL_DEVICE", "cpu", 1);  // also on a machine with a GPU
    for (const auto& [name, value] : env) setenv(name.c_str(), value.c_str(), 1);
    execv(words[0], words.data());
    _exit(98);
  }

  // What hangs is ended while ctest (TIMEOUT in tests/CMakeLists.txt) lets us tell what it had
  // said.
  Outcome finish(pid_t pid) const {
    const int process = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    pollfd ended{process, POLLIN, 0};
    if (poll(&ended, 1, 480'000) == 0) {
      kill(pid, SIGTERM);
      if (poll(&ended, 1, 60'000) == 0) kill(pid, SIGKILL);
    }
    close(process);
    int status = 0;
    waitpid(pid, &status, 0);
    Outcome outcome;
    outcome.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    outcome.out = file_text(dir() / "stdout.txt");
    outcome.err = file_text(dir() / "stderr.txt");
    return outcome;
  }

 private:
  static void redirect(int fd, const std::string& path, int flags) {
    const int file = open(path.c_str(), flags, 0644);
    if (file < 0 || dup2(file, fd) < 0) _exit(97);
    if (file != fd) close(file);
  }

  TempDir dir_;
};

}  // namespace mtl::test
