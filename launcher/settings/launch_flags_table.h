// The parts of the table of launch_flags.h.
#pragma once

#include <vector>

#include "launcher/settings/launch_flags.h"

namespace mtl {

std::vector<LaunchFlag> launch_core_flags();        // what a launch itself reads
std::vector<LaunchFlag> launch_slurm_flags();       // launch_flags_schedulers.cpp
std::vector<LaunchFlag> launch_kubernetes_flags();  // the same
std::vector<LaunchFlag> launch_family_flags();      // what is passed on to a program, or to nobody

}  // namespace mtl
