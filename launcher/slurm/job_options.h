// What a job asks SLURM for, from the settings slurm_* (launch.slurm.* in a train.yaml): each value
// checked by what SLURM accepts there, all of them at once, and put as sbatch wants it. Pure:
// nobody is asked whether a partition exists.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/error.h"
#include "launcher/request/launch_request.h"

namespace mtl {

struct SlurmOptions {
  std::string job_name;
  std::filesystem::path output;     // folder of its log; empty = that of the script
  std::vector<std::string> sbatch;  // "--partition=debug", in the order of the script; each a line
  std::vector<std::string> modules;
  std::vector<std::string> setup;  // shell commands, each a line
  int gpus_per_node = 0;           // 0 = none are asked for
  int nodes = 1;                   // the most
  bool array = false;
  bool wait = false;
  // Nobody said how many ranks or GPUs a node has, and none are asked for.
  bool gpus_unsaid = false;
};

// `name`: the job's unless one is given. `folder`: of the script, absolute. Codes slurm.value
// (names the setting, who gave it, and what is allowed), slurm.conflict.
SlurmOptions slurm_options(const LaunchRequest& request, const std::string& name,
                           const std::filesystem::path& folder, Diagnostics& diagnostics);

// How many seconds before the end of its time a job gets USR2, by --slurm_signal_s, else three
// minutes (less where the limit is known to be short); 0 = it gets none.
long slurm_warning_s(const LaunchRequest& request);

// Seconds of a time limit as SLURM writes it: "90" (minutes), "1:30" (minutes and seconds),
// "12:00:00", "1-12", "1-12:00:00". Nothing for UNLIMITED, and for what is none.
std::optional<long> slurm_seconds(const std::string& limit);

}  // namespace mtl
