// What a job of SLURM prints: its log, or those of an array's tasks together, each line with its
// task in front. Of an array the path has "%a" where a task's number stands, as sbatch takes it.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "launcher/output/console_lines.h"
#include "launcher/output/log_reader.h"

namespace mtl {

// "/x/37_%a.log" of the array's task "37_2" is "/x/37_2.log". Any other path stays as it is.
std::string log_of_task(const std::string& log, const std::string& id);
// And back: of "/x/37_2.log" and "37_2". Any other path stays as it is.
std::string log_of_array(const std::string& log, const std::string& id);

class JobLogs {
 public:
  using Sink = std::function<void(std::string_view bytes)>;

  // `log`: "" = nothing is read. `last_lines`: of each log where it begins; 0 = all.
  explicit JobLogs(std::string log, int64_t last_lines = 0);
  // All that is new; false if nothing is. Logs of new tasks are looked for once a second.
  bool read(const Sink& sink);
  // The rest, when nobody writes any more.
  bool finish(const Sink& sink);

 private:
  struct Part {
    LogReader reader;
    ConsoleLines lines;
  };
  void look();
  void add(int task, const std::filesystem::path& log);

  std::string log_;
  int64_t last_lines_;
  bool array_ = false;
  std::map<int, Part> parts_;  // by the task's number; of a job that is no array, 0
  std::chrono::steady_clock::time_point next_look_{};
};

}  // namespace mtl
