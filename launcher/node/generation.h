// One generation of a job on this node: what is needed around the workers (the store of our own
// runtime on node 0, their token, rank 0's progress pipe), then the agent.
#pragma once

#include <functional>
#include <string_view>

#include "launcher/agent/agent.h"
#include "launcher/node/job_messages.h"
#include "launcher/system/reserved_port.h"

namespace mtl {

// What the workers say, where this process is to hear it. Called as AgentOptions says.
struct JobEars {
  // Lines of ranks that are shown; empty = this process's own stdout and stderr.
  std::function<void(int rank, bool is_stderr, std::string_view line)> on_output;
  std::function<void(std::string_view line)> on_notice;
  std::function<void(std::string_view line)> on_line;  // rank 0's progress, of programs of ours
};

// Runs this node's ranks of `assign` to their end. `port`: held by this node; the workers' meeting
// if it is node 0. Throws what run_agent and place_ranks throw.
AgentResult run_generation(const NodeJob& job, const AssignMessage& assign,
                           const ReservedPort& port, const JobEars& ears, AgentControl* control);

// What ranks of this node are told: the CPU, where there is nothing else. (accelerate, unless told
// to use it, looks for a device and stumbles where there is none.)
LaunchConfig config_here(LaunchConfig config);

// How many ranks this node runs, where the job says "one per GPU" or the like. Throws what
// ranks_of_node() reports.
int node_slots(const NodeJob& job);

}  // namespace mtl
