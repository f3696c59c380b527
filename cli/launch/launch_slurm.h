// What a launch does differently in a SLURM job: tasks that share a node, arrays, the job that
// follows.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "launcher/controller/verdict.h"
#include "launcher/request/launch_request.h"
#include "launcher/slurm/standby.h"

namespace mtl {

// This process among the tasks that srun has started on its node, see standby.h.
struct StepShare {
  bool stands_by = false;  // it has, and there is nothing left to do
  std::optional<LeadTask> lead;
};
// Waits if another task leads. Throws Error (Exit::config) slurm.tasks if the lead cannot do the
// node's work: it does not see the GPUs of the others.
StepShare share_step(const LaunchGiven& given);

// A task of srun that is alone in a job of several nodes; "" = it is not.
std::string unused_nodes_notice(const Surroundings& around);

// Settings of an array's task: %a in their values is its number. `used`: whether run.name or
// run.dir had it. If neither has, tasks would share a run directory, so the caller gives their runs
// names of their own. What writes a script for an array passes settings on as they are.
std::vector<std::string> array_settings(const std::vector<std::string>& settings,
                                        const Surroundings& around, bool& used);

// After the end of a job that is over with this outcome: where this is the batch process of a SLURM
// job and the run is to go on, has SLURM continue it, and says so. The exit code of the launch.
// `run_dir`: of a run of ours, whose progress is known; else empty.
int continue_in_slurm(const LaunchRequest& request, const JobOutcome& outcome,
                      const std::filesystem::path& run_dir);

// "srun --nodes=4 ... mtl agent --connect", to be read; "" where srun starts nothing.
std::string step_words(const LaunchRequest& request);

}  // namespace mtl
