// A command that is a group of commands: `mtl data tokenize`, `mtl ckpt ls`.
#pragma once

#include <string>
#include <vector>

#include "cli/commands.h"

namespace mtl {

// Runs the member that args[0] names with the arguments after it; without one, or for --help, says
// what there is. Throws Error (Exit::usage): usage.missing, usage.unknown_command.
int run_group(const std::string& group, const std::string& about,
              const std::vector<Command>& members, const Arguments& args);

}  // namespace mtl
