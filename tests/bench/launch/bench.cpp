#include "bench/launch/bench.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <fcntl.h>
#include <fstream>
#include <poll.h>
#include <spawn.h>
#include <stdexcept>
#include <unistd.h>

#include <sys/syscall.h>
#include <sys/wait.h>

#include "support/text.h"

extern char** environ;

namespace mtl::bench {
namespace fs = std::filesystem;

Process::Process(const Words& argv, const fs::path& output) {
  std::vector<char*> words;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  posix_spawn_file_actions_adddup2(&files, 1, 2);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  started_ = Clock::now();
  const int failed = posix_spawnp(&pid_, words[0], &files, &attributes, words.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (failed != 0) throw std::runtime_error("cannot start " + argv[0]);
  pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
}

Process::~Process() {
  if (!over_) {
    kill(-pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(pidfd_);
}

std::optional<int> Process::wait(std::chrono::milliseconds limit) {
  if (!over_) {
    pollfd polled{pidfd_, POLLIN, 0};
    if (poll(&polled, 1, static_cast<int>(limit.count())) != 1) return {};
    ended_ = Clock::now();
    waitpid(pid_, &status_, 0);
    over_ = true;
  }
  return WIFSIGNALED(status_) ? 128 + WTERMSIG(status_) : WEXITSTATUS(status_);
}

double Process::seconds() const {
  return std::chrono::duration<double>(ended_ - started_).count();
}

void print_head() {
  std::printf("| what | who | median | range | seen | target |\n|---|---|---|---|---|---|\n");
}

namespace {

std::string show(double seconds) {
  char text[40];
  if (seconds < 0) return "never";
  if (seconds < 0.1) {
    std::snprintf(text, sizeof text, "%.1f ms", seconds * 1e3);
  } else {
    std::snprintf(text, sizeof text, "%.2f s", seconds);
  }
  return text;
}

}  // namespace

void row(const std::string& what, const std::string& target, int runs,
         const std::vector<Contender>& contenders) {
  std::vector<std::vector<double>> times(contenders.size());
  std::vector<std::string> notes(contenders.size());
  for (int round = 0; round < runs; ++round) {
    for (size_t i = 0; i < contenders.size(); ++i) {
      const Contender& contender = contenders[i];
      if (!contender.absent.empty() || (contender.runs > 0 && round >= contender.runs)) continue;
      Measured measured;
      try {
        measured = contender.run();
      } catch (const std::exception& error) {
        measured.note = error.what();
      }
      times[i].push_back(measured.seconds);
      if (notes[i].find(measured.note) == std::string::npos) {
        notes[i] += (notes[i].empty() ? "" : "; ") + measured.note;
      }
    }
  }
  for (size_t i = 0; i < contenders.size(); ++i) {
    std::vector<double>& own = times[i];
    std::sort(own.begin(), own.end());
    std::string median = contenders[i].absent, range;
    if (!own.empty()) {
      median = show(own[own.size() / 2]);
      range =
          show(own.front()) + " - " + show(own.back()) + " (" + std::to_string(own.size()) + ")";
    }
    std::printf("| %s | %s | %s | %s | %s | %s |\n", i == 0 ? what.c_str() : "",
                contenders[i].name.c_str(), median.c_str(), range.c_str(), notes[i].c_str(),
                i == 0 ? target.c_str() : "");
  }
  std::fflush(stdout);
}

Words Setup::mtl_launch(int ranks, const Words& options, const Words& program) const {
  Words words = {mtl, "launch", "--num_processes", std::to_string(ranks)};
  words.insert(words.end(), options.begin(), options.end());
  words.push_back("--");
  words.insert(words.end(), program.begin(), program.end());
  return words;
}

Words Setup::mpirun(int ranks, const Words& program) const {
  Words words = {"mpirun", "--allow-run-as-root", "--oversubscribe", "-np", std::to_string(ranks)};
  words.insert(words.end(), program.begin(), program.end());
  return words;
}

Words Setup::srun(int ranks, const Words& program) const {
  Words words = {"srun", "-N1", "-n" + std::to_string(ranks), "--overcommit", "-K"};
  words.insert(words.end(), program.begin(), program.end());
  return words;
}

Words Setup::torchrun(int ranks, const Words& options, const Words& program) const {
  Words words = {"/usr/bin/python3",    (dir / "torchrun.py").string(), "--nproc_per_node",
                 std::to_string(ranks), "--monitor_interval",           "0.1"};
  words.insert(words.end(), options.begin(), options.end());
  words.push_back("--no_python");
  words.insert(words.end(), program.begin(), program.end());
  return words;
}

Words Setup::accelerate(int ranks, const Words& program) const {
  Words words = {venv + "/bin/python",
                 (dir / "accelerate_launch.py").string(),
                 "--multi_gpu",
                 "--num_processes",
                 std::to_string(ranks),
                 "--monitor_interval",
                 "0.1",
                 "--main_process_port",
                 "0",
                 "--no_python"};
  words.insert(words.end(), program.begin(), program.end());
  return words;
}

void write_shim(const fs::path& path, const std::string& import) {
  std::ofstream(path) << R"(import sys
from torch.distributed.elastic.multiprocessing import api

def from_str(text):
    if text.isdigit():
        return api.Std(int(text))
    return {int(part.split(":")[0]): api.Std(int(part.split(":")[1])) for part in text.split(",")}

api.Std.from_str = staticmethod(from_str)
)" << import << "\nsys.exit(main())\n";
}

std::vector<pid_t> marked(const std::string& mark) {
  std::vector<pid_t> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (test::file_text(entry.path() / "cmdline").find(mark) != std::string::npos) {
      found.push_back(std::stoi(name));
    }
  }
  return found;
}

}  // namespace mtl::bench
