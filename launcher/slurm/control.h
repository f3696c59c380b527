// SLURM's own commands, and what they print.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "launcher/system/run_command.h"

namespace mtl {

// scontrol, sbatch ... without the variables of the job that this process is in; what they print,
// without the last newline. A SLURM_CONF that is not there fails at once: SLURM itself looks for it
// for a minute.
CommandAnswer ask_slurm(const std::vector<std::string>& argv,
                        std::chrono::milliseconds within = std::chrono::seconds(30));

// "NodeAddr" of `NodeName=n1 NodeAddr=10.0.0.1 ...`, as `scontrol show` prints it, spaces in values
// included; "" without it, and for what SLURM calls "(null)", "None" and "N/A".
std::string control_field(const std::string& text, const std::string& name);

}  // namespace mtl
