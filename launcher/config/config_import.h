// From the command line that people have - torchrun or accelerate launch, with Megatron-LM's own
// flags behind the program - to the settings of a launch.
#pragma once

#include <string>
#include <vector>

#include "launcher/settings/launch_flags.h"

namespace mtl {

struct ImportedCommand {
  FlagValues flags;               // by LaunchFlag::name
  std::vector<std::string> left;  // flags of the program that say nothing of where to run
};
// Code config.import if nothing launches, or a value cannot be.
ImportedCommand import_command(const std::vector<std::string>& words, Diagnostics& diagnostics);

}  // namespace mtl
