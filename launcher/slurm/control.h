// SLURM's own commands, run without a shell.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace mtl {

struct ControlEnd {
  int code = -1;  // 127: there is no such program; 124: it did not answer in time
  std::string out;
  std::string err;
};

// scontrol, sbatch ... with these arguments, and without the variables of the job that this process
// is in; its output, each without the last newline.
ControlEnd run_control(const std::vector<std::string>& argv,
                       std::chrono::milliseconds patience = std::chrono::seconds(30));

// "NodeAddr" of `NodeName=n1 NodeAddr=10.0.0.1 ...`, as `scontrol show` prints it; "" without it.
std::string control_field(const std::string& text, const std::string& name);

}  // namespace mtl
