// A program that runs on one of the lab's machines: started from here, watched, its output kept.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <sys/types.h>

namespace mtl::test {

struct CommandEnd {
  int code = -1;  // exit code, 128 + n for signal n, -1 if it had to be killed because time was up
  std::string out;
  std::string err;
  std::chrono::steady_clock::duration took{};
};

// Where it runs. Everything is prepared before the fork, so that the child needs system calls only.
struct CommandPlace {
  int namespaces = -1;  // pidfd of a process whose namespaces it enters; -1 = it stays here
  bool own_pids = false;
  std::string cgroup_procs;  // the file to write 0 into; empty = none
  std::filesystem::path working_directory;
  std::filesystem::path output;  // .out and .err are added
};

// Killed with its process group when it goes out of scope.
class Command {
 public:
  Command(const CommandPlace& place, const std::vector<std::string>& argv,
          const std::map<std::string, std::string>& env);
  ~Command();
  Command(Command&& other) noexcept;
  Command& operator=(Command&&) = delete;

  // The program's own process, as this side sees it; also on a machine with its own pids.
  pid_t pid() const { return pid_; }
  void signal(int number) const;
  std::string out() const;
  std::string err() const;
  bool running();
  // True as soon as `text` is in one of the outputs; false when the program ends or time is up
  // before that.
  bool says(const std::string& text, std::chrono::milliseconds within);
  CommandEnd wait(std::chrono::milliseconds within);

 private:
  std::filesystem::path output_;
  pid_t pid_ = -1;
  int pidfd_ = -1;
  bool over_ = false;
  int status_ = 0;
  std::chrono::steady_clock::time_point started_;
  std::chrono::steady_clock::time_point ended_;
};

}  // namespace mtl::test
