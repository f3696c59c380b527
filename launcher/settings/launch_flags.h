// The settings of a launch, one table for all of them: accelerate's flags, torchrun's and ours.
// Parsing, help, the reference page, the merging with the environment and with the configuration
// file, and the test that no setting is without effect come from it.
//
// A setting is given, weakest first, by the file, by the section `launch` of a train.yaml, by the
// scheduler that has started this process, by the environment (MTL_<NAME>, or PET_<NAME> as
// torchrun reads it), or by a flag (--name, also with dashes).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/error.h"
#include "rendezvous/surroundings.h"

namespace mtl {

enum class FlagGroup {
  ranks,     // where to run
  machines,  // several machines
  program,   // what to run
  workers,   // placement and environment
  logs,
  failures,
  other,
  paradigm,
  slurm,       // what a job asks the scheduler for; from here on in `mtl help launch-flags` only
  kubernetes,  // what its pods are
  megatron,
  fsdp,
  deepspeed,
  fp8,
  parallelism,
  dynamo,
  torchrun,
  elsewhere,  // without meaning here
};
const char* group_title(FlagGroup group);

enum class FlagKind {
  truth,    // --x, --x=true|false, --no-x
  whole,    // a whole number >= minimum
  number,   // a number >= minimum
  seconds,  // a number >= minimum, maybe with s, m or h
  size,     // bytes, maybe with K, M or G
  text,
  choice,  // one of the words in `value`, separated by |
  list,    // text; may be repeated
};

struct LaunchFlag {
  std::string name = {};  // with underscores
  FlagKind kind = FlagKind::text;
  FlagGroup group = FlagGroup::other;
  std::string value = {};  // what the help calls its value
  std::string help = {};
  std::string built_in = {};  // what is used without it, for the help; "" = nothing
  // Where the configuration file has it: "num_processes", "fsdp_config.fsdp_version"; "-" =
  // nowhere;
  // "" = as mtl_<name> in megatron_lm_config (accelerate tolerates strangers only there).
  std::string file_key = {};
  std::vector<std::string> aliases = {};  // torchrun's names, older names
  char short_name = '\0';
  double minimum = 0;
  // Why nothing here depends on it; "" = something does.
  std::string meaningless = {};
};

const std::vector<LaunchFlag>& launch_flags();
const LaunchFlag* find_launch_flag(std::string_view name);

// What `text` cannot be, in words ("a whole number >= 1"); nothing if it can.
std::optional<std::string> flag_value_wanted(const LaunchFlag& flag, const std::string& text);
std::optional<bool> truth_of(const std::string& text);
// Words that people and YAML use for a truth value, in one spelling.
std::string canonical_value(const LaunchFlag& flag, const std::string& text);

struct FlagValue {
  std::vector<std::string> texts;  // the last one counts, but for lists
  std::string origin;              // "--num_processes", "MTL_NUM_PROCESSES", "c.yaml"
};
using FlagValues = std::map<std::string, FlagValue, std::less<>>;  // by LaunchFlag::name

// The settings among the variables of an environment ("NAME=value", nullptr last). A value that
// cannot be is an error with code config.environment.
FlagValues flags_in_environment(const char* const* environment, Diagnostics& diagnostics);

// Who gives settings, the stronger one last; the file comes before all of them.
struct LaunchGiven {
  FlagValues train_yaml = {};  // its section `launch`: launch.slurm.partition -> slurm_partition
  // What a scheduler has told this process: see rendezvous/surroundings.h.
  FlagValues surroundings = {};
  FlagValues environment = {};
  FlagValues flags = {};
  Surroundings around = {};  // what the surroundings' settings are made from
};

}  // namespace mtl
