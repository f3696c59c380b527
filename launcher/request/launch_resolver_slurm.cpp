// What the SLURM job that this process is in decides of a launch: which nodes, how many ranks on
// each. Weaker than what was said by flags and variables, stronger than files.
#include <algorithm>

#include <fmt/format.h>

#include "launcher/request/launch_resolver.h"
#include "launcher/slurm/job_options.h"

namespace mtl {

// Whether agents are to be started on the nodes of the allocation. Who names hosts, or what only a
// command has that is typed on every node, wants it otherwise.
bool LaunchResolver::wants_allocation() const {
  const Surroundings& around = r_.allocation;
  const bool otherwise = standalone_.said() || hosts_.layer > kSurroundings ||
                         hostfile_.layer > kSurroundings || machine_rank_.layer > kSurroundings ||
                         endpoint_.layer > kSurroundings;
  return around.is_allocation() && !around.node_names.empty() && r_.via.empty() && !otherwise;
}

// A task of srun is one of the job's nodes: what the configuration file says of machines and ranks
// is as little meant for it as for an allocation. Who says by hand which machine this is, or where
// all meet, has a file to go with it.
void LaunchResolver::finish_step() {
  const Surroundings& around = r_.allocation;
  const bool by_hand = standalone_.said() || hosts_.said() || hostfile_.said() ||
                       machine_rank_.layer > kSurroundings || endpoint_.layer > kSurroundings;
  if (around.launcher != Launcher::slurm || !around.task || !r_.via.empty() || by_hand) return;
  node_of_step_ = true;
  if (total_.layer == kFile) total_ = {};
  if (nodes_.layer == kFile) nodes_ = {};
}

void LaunchResolver::finish_allocation() {
  const Surroundings& around = r_.allocation;
  // The configuration file says what a person has at home; what a train.yaml says is meant.
  if (total_.layer == kFile) total_ = {};
  const bool said = per_node_.layer > kFile || total_.layer > kFile;
  const auto differ = [](const std::vector<int>& counts) {
    return std::any_of(counts.begin(), counts.end(), [&](int n) { return n != counts.front(); });
  };
  const std::vector<int>& gpus = around.gpus_of_nodes;
  const bool on_gpus = !r_.config.use_cpu &&
                       std::any_of(gpus.begin(), gpus.end(), [](int count) { return count > 0; });
  // Ranks of each node; empty = what a node finds.
  std::vector<int> ranks;
  if (!said) ranks = on_gpus ? gpus : around.tasks_per_node;
  if (!ranks.empty() && !differ(ranks) && (on_gpus || ranks.front() > 1)) {
    per_node_.set(ranks.front(), kSurroundings,
                  on_gpus ? "the job's GPUs per node" : "SLURM_TASKS_PER_NODE");
  }
  if (!differ(ranks)) ranks.clear();
  // The script of sbatch is on the job's first node; where that is the only one, nothing has to be
  // started elsewhere.
  const bool contained = r_.slurm.count("container") > 0;
  if (around.node_names.size() == 1 && around.batch && !contained) {
    if (nodes_.layer <= kSurroundings) nodes_ = {};
    return;
  }
  r_.mode = LaunchRequest::Mode::allocation;
  std::string without;
  for (size_t i = 0; i < around.node_names.size(); ++i) {
    Host host;
    host.name = around.node_names[i];
    if (i < ranks.size()) host.slots = ranks[i];
    if (i < ranks.size() && ranks[i] == 0) {
      without += (without.empty() ? "" : ", ") + host.name;
    } else {
      r_.hosts.push_back(std::move(host));
    }
  }
  if (!without.empty()) {
    diagnostics_.add(
        {.code = "launch.node_unused",
         .what = fmt::format("{}: {} has no GPU, where others have: no rank runs there",
                             around.words, without),
         .help = "--nproc_per_node N starts N ranks on every node, --cpu goes without "
                 "GPUs",
         .severity = Diagnostic::Severity::warning});
  }
  const int nodes = static_cast<int>(r_.hosts.size());
  r_.min_nodes = r_.max_nodes = nodes;
  if (!nodes_.said() || nodes_.layer == kFile) return;
  if (nodes_.value.min > nodes) {
    const std::string why = without.empty() ? "" : fmt::format(" with GPUs: {} has none", without);
    return fail("launch.nodes",
                fmt::format("{} asks for {} nodes, and {} has {}{}", nodes_.origin,
                            nodes_.value.min, around.words, nodes, why),
                without.empty()
                    ? fmt::format("#SBATCH --nodes={}, or leave the number out", nodes_.value.min)
                    : "leave the number out; --nproc_per_node N starts N ranks on every node, "
                      "--cpu goes without GPUs");
  }
  r_.min_nodes = nodes_.value.min;
  r_.max_nodes = std::min(nodes_.value.max, nodes);
  // Nodes that an elastic job does not need at first wait in case that one is lost.
  if (r_.min_nodes == r_.max_nodes) r_.hosts.resize(static_cast<size_t>(r_.max_nodes));
}

// A checkpoint of a large model takes longer than the grace after a failure, and there is time: the
// warning comes minutes before the end. Some of them are left for what follows.
void LaunchResolver::finish_warning() {
  constexpr std::chrono::seconds kLeft{30};
  r_.warning_grace = r_.grace;
  if (r_.allocation.launcher != Launcher::slurm) return;
  const std::chrono::milliseconds warned = std::chrono::seconds(slurm_warning_s(r_)) - kLeft;
  r_.warning_grace = std::max(r_.grace, warned);
}

}  // namespace mtl
