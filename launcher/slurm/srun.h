// srun as a child of ours: a line for its stdin, what it says, how it ends.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "common/files.h"

namespace mtl {

class Srun {
 public:
  // Starts it, without srun_variables(), and gives it `line`, which srun hands to all its tasks.
  // Throws Error (Exit::environment) slurm.srun if there is no such program.
  Srun(const std::vector<std::string>& argv, std::string_view line);
  // Waits a moment for its end, then has it end the step.
  ~Srun();
  Srun(const Srun&) = delete;
  Srun& operator=(const Srun&) = delete;

  // Has it end the step now.
  void end_step() const;

  int output_fd() const { return output_.get(); }  // -1 once all has been said
  // Whole lines that have come since; at its end the last one too.
  std::vector<std::string> read_lines();
  int end_fd() const { return pidfd_.get(); }  // readable when it has ended
  // Its exit code, 128 + n for a signal; reaped by this. Only when end_fd() is readable.
  int take_end();

 private:
  bool ends_within(int milliseconds);

  pid_t pid_ = -1;
  Fd pidfd_, output_;
  std::string unfinished_;
  bool ended_ = false;
};

}  // namespace mtl
