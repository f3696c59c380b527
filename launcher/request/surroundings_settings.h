// What pods, mpirun and LSF have told this process (rendezvous/surroundings.h), as settings of a
// launch: one agent for each pod, or for each task where there is one on every node. What SLURM has
// told is in launch_surroundings.cpp.
#pragma once

#include "common/error.h"
#include "launcher/settings/launch_flags.h"
#include "rendezvous/surroundings.h"

namespace mtl {

// Into given.surroundings; after given.environment and given.flags are known. PyTorchJob's RANK
// and WORLD_SIZE are pods here; the index of an Indexed Job is a machine_rank where somebody says
// that its pods are one job (--num_machines), and nothing otherwise: they may be jobs of their own.
// Codes: surroundings.tasks.
void settings_of_surroundings(const Surroundings& around, LaunchGiven& given,
                              Diagnostics& diagnostics);

// Whether somebody has said by flag or variable how this process meets others, or that it does not:
// then it is not left to what is around.
bool meets_by_hand(const LaunchGiven& given);

}  // namespace mtl
