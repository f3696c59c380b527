// What the launcher's benchmark is made of: contenders that run a command line, a table of what
// came out, and the peers' command lines.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace mtl::bench {

using Clock = std::chrono::steady_clock;
using Words = std::vector<std::string>;

// A program started here, in a process group of its own, its output in a file.
class Process {
 public:
  Process(const Words& argv, const std::filesystem::path& output);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  pid_t pid() const { return pid_; }
  // Exit code or 128 + signal; nothing after `limit`.
  std::optional<int> wait(std::chrono::milliseconds limit);
  double seconds() const;  // from the start to its end

 private:
  pid_t pid_ = -1;
  int pidfd_ = -1;
  bool over_ = false;
  int status_ = 0;
  Clock::time_point started_, ended_;
};

struct Measured {
  double seconds = -1;  // < 0: it did not happen
  std::string note;     // "code 42", "8 orphans", ...
};

struct Contender {
  std::string name;
  std::function<Measured()> run;
  std::string absent = {};  // why it is not measured: "not yet", "not installed"
  int runs = 0;             // fewer than the row's, for what takes long; 0 = as many
};

// Runs the contenders in turn, `runs` times round, and prints the row: median and range.
void print_head();
void row(const std::string& what, const std::string& target, int runs,
         const std::vector<Contender>& contenders);

struct Setup {
  std::filesystem::path dir;  // scratch
  std::string mtl;
  std::string venv;  // with accelerate; empty = none
  int runs = 5;
  bool has_torch = false;
  bool has_mpirun = false;
  bool has_srun = false;  // and a cluster that answers

  std::string help;  // of mtl launch: which flags are there
  bool has_flag(const std::string& flag) const {
    return help.find("--" + flag) != std::string::npos;
  }
  // `ranks` processes of one program on this machine.
  Words mtl_launch(int ranks, const Words& options, const Words& program) const;
  Words mpirun(int ranks, const Words& program) const;
  Words srun(int ranks, const Words& program) const;
  Words torchrun(int ranks, const Words& options, const Words& program) const;
  Words accelerate(int ranks, const Words& program) const;
};
// torch 1.13's launcher does not start under Python 3.11 (Std.from_str finds no member 0); this
// runs `module` with that one function replaced.
void write_shim(const std::filesystem::path& path, const std::string& import);

// Processes whose command line holds `mark`, but those of `except`.
std::vector<pid_t> marked(const std::string& mark);

void local_rows(const Setup& setup);
void cluster_rows(const Setup& setup);

}  // namespace mtl::bench
