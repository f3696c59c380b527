// From the options that `launch` and `plan` share to a checked run.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/request/launch_request.h"
#include "runtime/run.h"

namespace mtl {

struct RunOptions {
  LaunchGiven given;  // by flags and by the environment
  bool fresh = false;
  bool plan_only = false;  // nothing starts: nobody has to say where machines meet
  // What turned out to be too much for a rank (bytes_of_rank() of its plan), where
  // train.micro_batch is auto; 0 = nothing has.
  int64_t too_many_bytes = 0;
};

// --config_file (or MTL_CONFIG_FILE) has to exist, the default files need not: ours, else
// accelerate's; "none" is no file. Adds what is wrong to `diagnostics`.
LaunchConfig load_launch_config(const LaunchGiven& given, Diagnostics& diagnostics);
// "config: PATH\n" where a file is used that nobody named; else "".
std::string config_file_notice(const LaunchConfig& file, const LaunchGiven& given);

// The section `launch` of a train.yaml, where its layers (file, MTL_LAUNCH__..., key=value) give
// something: put with the flags of the same strength, which win.
void add_launch_section(const ResolvedSpec& resolved, LaunchGiven& given);

// Reads MTL_NUM_PROCESSES and its like. Throws Error with all that cannot be read.
void read_launch_environment(LaunchGiven& given);

void print_warnings(const std::vector<Diagnostic>& warnings);  // on stderr

// MTL_<SECTION>__<KEY> of an environment ("NAME=value" entries, nullptr last), names as found.
std::vector<std::pair<std::string, std::string>> settings_in_environment(
    const char* const* environment);

// Flags become overrides unless a key=value sets the same key. Throws Error (usage.override) for
// arguments that are not key=value.
std::vector<std::string> overrides(const RunOptions& options,
                                   const std::vector<std::string>& arguments,
                                   const std::string& engine = {}, const LaunchConfig& file = {});

// Nodes on which agents are started, or of a job that is only submitted: what this machine has says
// nothing of theirs.
bool ranks_are_elsewhere(const LaunchRequest& request);

// What its ranks would refuse of the variables that they read here, or of --env; nothing where they
// are a job's, with an environment of its own.
std::vector<Error> wrong_words_of_ranks(const LaunchRequest& request);

struct PreparedRun {
  LaunchRequest request;
  int world = 1;
  CheckedRun checked;
  std::string config_file;           // that was read, "" = none
  std::string config_notice;         // of load_launch_config()
  std::vector<Diagnostic> warnings;  // of the config file: what it says in vain, for instance
};
// Throws one Error with all that is wrong in either file. `world`: how many ranks there will really
// be, where that is known better than from the settings.
PreparedRun prepare_run(const RunOptions& options, const std::string& train_yaml,
                        const std::vector<std::string>& arguments, std::optional<int> world = {});

}  // namespace mtl
