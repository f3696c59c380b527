// mtl launch --via slurm, and its other name, mtl submit: from a launch that has been checked to a
// job in SLURM's queue.
#pragma once

#include <string>
#include <vector>

#include "cli/launch/launch.h"

namespace mtl {

// A run of ours. `settings`: key=value, as given.
int submit_run(const LaunchOptions& options, const PreparedRun& run, const std::string& train_yaml,
               const std::vector<std::string>& settings);
// A program with its arguments.
int submit_program(const LaunchOptions& options, const LaunchRequest& request,
                   const std::string& config_file, const std::string& program,
                   const std::vector<std::string>& arguments);

}  // namespace mtl
