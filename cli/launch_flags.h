// The table of launch settings as options of a command, and as text for people.
#pragma once

#include <string>

#include "cli/command_line.h"
#include "launcher/request/launch_request.h"
#include "launcher/settings/launch_flags.h"

namespace mtl {

// Declares all settings of launcher/settings/launch_flags.h; what is given lands in `values`. The
// families are accepted and not shown. `submits`: those for SLURM are shown, and also have their
// names without slurm_, as sbatch has them.
void declare_launch_flags(CommandLine& line, FlagValues& values, bool submits = false);
// Of a command that starts ranks of its own, or none: without those for a program that is started,
// and --dry-run.
void declare_check_flags(CommandLine& line, FlagValues& values);
// Throws Error (usage.option) if one of these is given to `command` all the same, or MTL_DRY_RUN.
void refuse_launch_only_flags(const LaunchGiven& given, const std::string& command);
// Only those that a plan reads: how many ranks, precision, layout.
void declare_plan_flags(CommandLine& line, FlagValues& values);
// All of them, of which only those of a plan are shown: what a configuration file can hold.
void declare_config_flags(CommandLine& line, FlagValues& values);

// Flags of `mtl launch` that are no settings: they stand in no file and no variable.
struct CommandFlag {
  const char* name;
  const char* help;
};
inline constexpr CommandFlag kFreshFlag{
    "fresh", "start a new run instead of continuing the newest one of that name"};
inline constexpr CommandFlag kJsonFlag{"json",
                                       "with --dry-run: one JSON document, schema mtl.launch/1"};

// `mtl help launch-flags`: every setting, in the groups of the table.
std::string launch_flags_text(int columns);
// docs/reference/launch-flags.md.
std::string launch_flags_reference();

}  // namespace mtl
