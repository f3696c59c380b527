// From the options that `launch` and `plan` share to a checked run.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/launch_config.h"
#include "runtime/run.h"

namespace mtl {

class CommandLine;

struct RunOptions {
  std::string config_file;  // empty = accelerate's place, if there is a file
  std::optional<int64_t> num_processes;
  std::optional<std::string> mixed_precision;
  bool fresh = false;
};
void declare_where_to_run(CommandLine& line, RunOptions& options);

// `--config_file` has to exist, the default file need not. Adds what is wrong to `diagnostics`.
LaunchConfig load_launch_config(const RunOptions& options, Diagnostics& diagnostics);
// The option, else num_processes of the file, else 1.
int world_size(const RunOptions& options, const LaunchConfig& config);

// Several machines are not started yet: that is an error rather than a silent single one.
void check_machines(const LaunchConfig& config, Diagnostics& diagnostics);

void print_warnings(const std::vector<Diagnostic>& warnings);  // on stderr

// MTL_<SECTION>__<KEY> of an environment ("NAME=value" entries, nullptr last), names as found.
std::vector<std::pair<std::string, std::string>> settings_in_environment(
    const char* const* environment);

// Options become overrides unless a key=value sets the same key. Throws Error (usage.override) for
// arguments that are not key=value.
std::vector<std::string> overrides(const RunOptions& options,
                                   const std::vector<std::string>& arguments);

struct PreparedRun {
  LaunchConfig config;
  int world = 1;
  CheckedRun checked;
  std::vector<Diagnostic> warnings;  // of the config file: what it says in vain, for instance
};
// Throws one Error with all that is wrong in either file.
PreparedRun prepare_run(const RunOptions& options, const std::string& train_yaml,
                        const std::vector<std::string>& arguments);

}  // namespace mtl
