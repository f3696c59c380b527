#include "launcher/slurm/gpus.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <sstream>

#include "launcher/slurm/control.h"
#include "rendezvous/node_list.h"

namespace mtl {

namespace {

constexpr std::chrono::seconds kAnswer{10};

// "gpu:a100:2(IDX:0-1),gpu:v100:1(IDX:2),shard:4" has 3.
int gpus_of_gres(const std::string& words) {
  int sum = 0;
  int depth = 0;
  std::string word;
  const auto end_word = [&] {
    const size_t colon = word.rfind(':');
    if (word.starts_with("gpu:")) sum += std::atoi(word.c_str() + colon + 1);
    word.clear();
  };
  for (const char c : words) {
    if (c == '(') ++depth;
    if (depth == 0 && c == ',') {
      end_word();
    } else if (depth == 0) {
      word += c;
    }
    if (c == ')') --depth;
  }
  end_word();
  return sum;
}

bool is_sure(const Surroundings& around) {
  return around.gpus_of_nodes.size() == around.node_names.size();
}

// What the controller says, of all nodes or of none.
void ask_controller(Surroundings& around) {
  // Of a node that several components of a heterogeneous job have, the sum would be told.
  const std::set<std::string> distinct(around.node_names.begin(), around.node_names.end());
  if (distinct.size() != around.node_names.size()) return;
  const CommandAnswer answer =
      ask_slurm({"scontrol", "show", "job", "-d", around.raw_job_id}, kAnswer);
  if (answer.code != 0) return;
  const std::map<std::string, int> told = gpus_in(answer.out);
  std::vector<int> counts;
  for (const std::string& name : around.node_names) {
    const auto found = told.find(name);
    if (found == told.end()) return;
    counts.push_back(found->second);
  }
  around.gpus_of_nodes = std::move(counts);
  size_t node = 0;
  for (Surroundings::Share& share : around.shares) {
    const auto first = around.gpus_of_nodes.begin() + static_cast<std::ptrdiff_t>(node);
    const auto last = first + share.nodes;
    node += static_cast<size_t>(share.nodes);
    const bool even = std::all_of(first, last, [&](int count) { return count == *first; });
    share.gpus_per_node = even && first != last ? *first : -1;
    share.gpus = even ? -1 : std::accumulate(first, last, 0);
  }
}

}  // namespace

std::map<std::string, int> gpus_in(const std::string& text) {
  std::map<std::string, int> counts;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    // Of a job with one kind of line for each share of its nodes; "NumNodes=3" is none of them.
    // (An older SLURM has GRES_IDX there, without numbers.)
    const std::string nodes = control_field(line, "Nodes");
    if (nodes.empty() || line.find(" GRES=") == std::string::npos) continue;
    Diagnostics ignored;
    const int gpus = gpus_of_gres(control_field(line, "GRES"));
    for (const std::string& name : expand_node_list(nodes, ignored)) counts[name] += gpus;
  }
  return counts;
}

void count_gpus(Surroundings& around) {
  if (around.node_names.empty() || is_sure(around)) return;
  // The batch script alone on its node sees them itself.
  if (around.node_names.size() > 1 || !around.batch) ask_controller(around);
  if (is_sure(around)) return;
  around.gpus_of_nodes.clear();
  for (const Surroundings::Share& share : around.shares) {
    if (share.gpus_per_node < 0) return around.gpus_of_nodes.clear();
    around.gpus_of_nodes.insert(around.gpus_of_nodes.end(), static_cast<size_t>(share.nodes),
                                share.gpus_per_node);
  }
}

}  // namespace mtl
