// From what has started this process (rendezvous/surroundings.h) to settings of a launch.
#pragma once

#include "common/error.h"
#include "launcher/settings/launch_flags.h"

namespace mtl {

// Reads this process's surroundings into `given.around`, and what they decide into
// `given.surroundings`. In a task of srun: the number of nodes and which one this is, where node 0
// is (looked up, which may ask scontrol), a port and a run id made from the job's; in a job, which
// node has how many GPUs (the same), unless --cpu. After given.environment and given.flags are
// known: what they say is not looked for. Codes: surroundings.value, slurm.address, slurm.tasks.
void read_surroundings(LaunchGiven& given, Diagnostics& diagnostics);

// Whether this process is one of several tasks of srun on its node, and nobody has said by flags or
// variables that each of them is to work for itself.
bool shares_node(const LaunchGiven& given);

// An address by which all nodes of a SLURM job reach this one of them: its name where that
// resolves, else what SLURM's controller knows; "" if neither does.
std::string address_of_slurm_node(const std::string& name);

}  // namespace mtl
