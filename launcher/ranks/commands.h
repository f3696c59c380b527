// From a program and a place in the job to what each rank of this node executes: one function for
// the local launch, for the agents of other machines, and for what --dry-run prints.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "launcher/agent/agent.h"
#include "launcher/ranks/placement.h"
#include "launcher/ranks/worker_env.h"
#include "launcher/settings/launch_config.h"

namespace mtl {

// What is started, the same on every node.
struct JobProgram {
  std::vector<std::string> argv;
  std::map<std::string, std::string> env;  // on top of everything else
  // Of the environment where the job was started, for other hosts: what nobody else decides.
  std::map<std::string, std::string> inherited;
  std::string working_directory;  // empty = the agent's own
  std::string log_dir;            // where its output goes if nobody says
  // What has to be readable on every node before anything starts: the script, the run directory.
  std::vector<std::string> needed_files;
  bool is_ours = false;  // `mtl worker`: gets the run's token and rank 0 the progress pipe
  bool threads = false;  // one process with a thread per rank (one node only)
  // Whether it begins with INT, TERM, USR1 and USR2 blocked and takes them when it can: one that
  // comes before then waits, where its default would be the end of a program without a handler.
  bool takes_signals = false;
  // Whether a rank that is alone is told so (RANK, WORLD_SIZE ...): see LaunchRequest::numbered.
  bool numbered = true;
};

// The descriptors that our own workers inherit.
constexpr int kTokenFd = 3;
constexpr int kProgressFd = 4;

// Pure. The descriptors (WorkerCommand::inherit) are the caller's business; MTL_TOKEN_FD and
// MTL_PROGRESS_FD are set here for programs of ours. `error_dir`: where error files go, "" = none.
std::vector<WorkerCommand> node_commands(const JobProgram& program, const LaunchConfig& config,
                                         const NodeLayout& layout,
                                         const std::vector<RankPlacement>& placement,
                                         const std::string& error_dir);

}  // namespace mtl
