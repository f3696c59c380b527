// The environment that a rank sees: torchrun's variables and accelerate's, so that a script written
// for either runs unchanged, and `mtl worker` under either.
#pragma once

#include <map>
#include <string>

#include "launcher/settings/launch_config.h"

namespace mtl {

// Where one node's ranks stand in the job. Nodes may have different numbers of ranks.
struct NodeLayout {
  int num_nodes = 1;
  int node_rank = 0;
  int world = 1;                           // ranks of the job
  int first_rank = 0;                      // of this node
  int local_ranks = 1;                     // on this node
  std::string node_address = "127.0.0.1";  // of this node, as its peers reach it
  std::string master_addr = "127.0.0.1";
  int master_port = 29500;
  std::string run_id = "none";
  int restart_count = 0;  // the generation
  int max_restarts = 0;
  int cores = 1;        // that this node's ranks may use together, see allowed_cores()
  int omp_threads = 0;  // per rank, as the user wants it; 0 = cores / local_ranks, at least 1
};

// Pure: the variables of one rank, to be added to the agent's own environment. `numbered`: with its
// number and where the ranks meet, from which libraries infer that it is one of several.
std::map<std::string, std::string> worker_environment(const LaunchConfig& config,
                                                      const NodeLayout& layout, int local_rank,
                                                      bool numbered = true);

// Cores that this process may use: its CPU mask, and the CPU quota of its cgroup; at least 1.
int allowed_cores();
// The CPU quota of this process's cgroup in cores; 0 = none.
double cpu_quota();

}  // namespace mtl
