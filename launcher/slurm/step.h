// The job step that carries the agents: srun starts one on every node of the allocation. What it is
// called with is a pure function of what the launch was asked for and of what the allocation says.
#pragma once

#include <string>
#include <vector>

#include "launcher/request/launch_request.h"

namespace mtl {

// request.slurm, for this room:
//   srun               more options for srun, last, so that they win
//   container          an image; agents (and with them the ranks) run in it
//   container_runtime  pyxis (srun's own --container-image; the default), apptainer, singularity
//   container_mounts   HERE[:THERE[:MODE]], several as a list or with commas
//
// A step: "srun" with its arguments up to and with `agent`, the command that is run on each of its
// nodes, and how many these are.
struct AgentStep {
  std::vector<std::string> argv;
  size_t nodes = 0;
};

// One step, or one for each component of a heterogeneous job that has nodes in the launch (a single
// step over several would give what srun reads to one of them only). Their nodes are request.hosts,
// one step's after another's. `folder`: the working directory, which a container has to have too.
// Throws Error (Exit::configuration) slurm.value for a container setting that cannot be.
std::vector<AgentStep> agent_steps(const LaunchRequest& request, const std::string& folder,
                                   const std::vector<std::string>& agent);

// The same for this process: its folder, its program (in a container: the image's own mtl), unless
// --remote_program says another. Nothing secret is in it.
std::vector<AgentStep> agent_steps(const LaunchRequest& request);

// Variables of the allocation that srun takes for options, and that mean its tasks rather than one
// agent per node: SLURM_NTASKS_PER_NODE, SLURM_GPUS_PER_TASK ... They are taken out of its
// environment.
const std::vector<std::string>& srun_variables();

}  // namespace mtl
