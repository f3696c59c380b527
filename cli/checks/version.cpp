// mtl version
#include "common/version.h"

#include <fmt/format.h>

#include "cli/command_line.h"
#include "cli/commands.h"

namespace mtl {

int command_version(const Arguments& args) {
  CommandLine line({"version"}, "Prints the version of mtl.");
  if (!line.parse(args)) return 0;
  fmt::print("mtl {}\n", version());
  return 0;
}

}  // namespace mtl
