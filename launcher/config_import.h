// From the command line that people have - torchrun or accelerate launch, with Megatron-LM's own
// flags behind the program - to the settings of a launch.
#pragma once

#include <string>
#include <vector>

#include "launcher/launch_flags.h"

namespace mtl {

// A shell script or a command rather than YAML.
bool looks_like_command(const std::string& text);
// The words of the launching command of a shell script: comments, continued lines, quotes, simple
// assignments (A=1, A+=0, "$A", ${A:-1}, $((A * 2)), ARGS=(...) with "${ARGS[@]}") are understood;
// redirections and other commands are passed over. Empty if there is none.
std::vector<std::string> command_of_script(const std::string& script);

struct ImportedCommand {
  FlagValues flags;               // by LaunchFlag::name
  std::vector<std::string> left;  // flags of the program that say nothing of where to run
};
// Code config.import if nothing launches, or a value cannot be.
ImportedCommand import_command(const std::vector<std::string>& words, Diagnostics& diagnostics);

}  // namespace mtl
