// What SLURM and LSF say of a process.
#include <algorithm>
#include <cstdlib>
#include <numeric>

#include <fmt/format.h>

#include "rendezvous/node_list.h"
#include "rendezvous/surroundings_reader.h"

namespace mtl {

namespace {

// Steps that SLURM makes for itself: the batch script, the shell of an interactive salloc.
constexpr long kPseudoSteps = 0xfffffff0;
constexpr int kPortsToTry = 16;

}  // namespace

using Task = Surroundings::Task;

// --- SLURM ---
std::optional<Task> SurroundingsReader::slurm_step() {
  if (!has("SLURM_JOB_ID") || !has("SLURM_STEP_NUM_TASKS")) return std::nullopt;
  if (number(has("SLURM_STEP_ID") ? "SLURM_STEP_ID" : "SLURM_STEPID", 0) >= kPseudoSteps) {
    return std::nullopt;
  }
  Task task;
  task.world = small("SLURM_STEP_NUM_TASKS", 1);
  task.nodes = small("SLURM_STEP_NUM_NODES", 1);
  // Those of a step around the sbatch or salloc that this job comes from.
  if (has("SLURM_NTASKS") && small("SLURM_NTASKS", 1) != task.world) return std::nullopt;
  if (has("SLURM_NNODES") && small("SLURM_NNODES", 1) != task.nodes) return std::nullopt;
  task.rank = small("SLURM_PROCID", 0);
  task.local_rank = small("SLURM_LOCALID", 0);
  task.node = small("SLURM_NODEID", 0);
  const std::vector<int> counts = expand_counts(text("SLURM_STEP_TASKS_PER_NODE"));
  task.local_world = 0;
  if (static_cast<size_t>(task.node) < counts.size()) {
    task.local_world = counts[static_cast<size_t>(task.node)];
  }
  return task;
}

void SurroundingsReader::slurm_task() {
  if (!step_) return;
  names_ = {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"};
  out_.launcher = Launcher::slurm;
  out_.task = step_;
  out_.nodes = step_->nodes;
  out_.node = step_->node;
  slurm_job();
  out_.step_id = text(has("SLURM_STEP_ID") ? "SLURM_STEP_ID" : "SLURM_STEPID");
  out_.words = fmt::format("SLURM job {}, step {}", out_.job_id, out_.step_id);
  node_names("SLURM_STEP_NODELIST");
  out_.tasks_per_node = tasks_per_node("SLURM_STEP_TASKS_PER_NODE");
  if (!out_.tasks_per_node.empty() &&
      std::accumulate(out_.tasks_per_node.begin(), out_.tasks_per_node.end(), 0) != step_->world) {
    fail(fmt::format("SLURM_STEP_TASKS_PER_NODE={} are not SLURM_STEP_NUM_TASKS={}",
                     text("SLURM_STEP_TASKS_PER_NODE"), step_->world),
         "start this with srun itself; its variables do not fit one another");
  }
  slurm_share_of_task();
  meet_at_first_node();
  master();
}

void SurroundingsReader::slurm_allocation() {
  if (!has("SLURM_JOB_ID")) return;
  out_.launcher = Launcher::slurm;
  slurm_job();
  out_.batch = text("ENVIRONMENT") == "BATCH" || has("SLURM_PROCID");
  out_.words = fmt::format("SLURM job {}", out_.job_id);
  // A job that was submitted from within a heterogeneous one has that one's variables.
  const int components = small("SLURM_HET_SIZE", 1);
  if (components > 1 && text("SLURM_JOB_ID") == text("SLURM_JOB_ID_HET_GROUP_0")) {
    for (int i = 0; i < std::min(components, kMostComponents); ++i) {
      slurm_component(fmt::format("_HET_GROUP_{}", i));
    }
  } else {
    slurm_component("");
  }
  if (out_.batch) out_.node = 0;  // where SLURM runs the script
  meet_at_first_node();
}

// Nodes that were asked for together: the variables whose names end in `suffix`.
void SurroundingsReader::slurm_component(const std::string& suffix) {
  const std::string list = "SLURM_JOB_NODELIST" + suffix;
  if (!suffix.empty() && !has(list.c_str())) {
    fail(fmt::format("SLURM_HET_SIZE={}, but {} is not set", text("SLURM_HET_SIZE"), list),
         "unset SLURM_HET_SIZE to use the nodes of SLURM_JOB_NODELIST only");
    return;
  }
  const size_t before = out_.node_names.size();
  node_names(list.c_str());
  const int named = static_cast<int>(out_.node_names.size() - before);
  std::string number = "SLURM_JOB_NUM_NODES" + suffix;
  if (!has(number.c_str())) number = "SLURM_NNODES" + suffix;
  const int nodes = small(number.c_str(), named);
  if (named > 0 && nodes != named) {
    fail(fmt::format("{}={}, but {}={} are {}", number, nodes, list, text(list.c_str()), named),
         "do not set these variables by hand: SLURM does");
  }
  out_.nodes += nodes;
  const std::string counts = "SLURM_TASKS_PER_NODE" + suffix;
  const std::vector<int> tasks = tasks_per_node(counts);
  const bool all = static_cast<int>(tasks.size()) == nodes &&
                   std::all_of(tasks.begin(), tasks.end(), [](int count) { return count > 0; });
  if (nodes > 0 && !tasks.empty() && !all) {
    fail(fmt::format("{}={} are no tasks for each of {} node{}", counts, text(counts.c_str()),
                     nodes, nodes == 1 ? "" : "s"),
         "do not set these variables by hand: SLURM does");
  }
  out_.tasks_per_node.insert(out_.tasks_per_node.end(), tasks.begin(), tasks.end());
  if (!suffix.empty()) out_.tasks_per_node.resize(static_cast<size_t>(out_.nodes), 1);
  slurm_share(suffix, nodes, tasks);
  // Of this node, where it is one of several: what the others have, SLURM alone knows.
  Surroundings::Share& share = out_.shares.back();
  const bool sure = has(("SLURM_GPUS_PER_NODE" + suffix).c_str()) || nodes == 1;
  if (sure && share.gpus_per_node >= 0 &&
      out_.gpus_of_nodes.size() == static_cast<size_t>(out_.nodes - nodes)) {
    out_.gpus_of_nodes.resize(static_cast<size_t>(out_.nodes), share.gpus_per_node);
  }
}

void SurroundingsReader::slurm_job() {
  out_.raw_job_id = text("SLURM_JOB_ID");
  out_.job_id = out_.raw_job_id;
  if (has("SLURM_ARRAY_JOB_ID") && has("SLURM_ARRAY_TASK_ID")) {
    out_.job_id = fmt::format("{}_{}", text("SLURM_ARRAY_JOB_ID"), text("SLURM_ARRAY_TASK_ID"));
  }
  out_.restarts = small("SLURM_RESTART_COUNT", 0);
}

void SurroundingsReader::node_names(const char* name) {
  if (!has(name)) return;
  Diagnostics wrong;
  const std::vector<std::string> names = expand_node_list(text(name), wrong);
  out_.node_names.insert(out_.node_names.end(), names.begin(), names.end());
  for (const Diagnostic& diagnostic : wrong.all()) {
    Diagnostic own = diagnostic;
    own.code = "surroundings.value";
    own.what = fmt::format("{}: {}", name, diagnostic.what);
    diagnostics_.add(std::move(own));
  }
}

std::vector<int> SurroundingsReader::tasks_per_node(const std::string& name) {
  if (!has(name.c_str())) return {};
  std::vector<int> tasks = expand_counts(text(name.c_str()));
  if (tasks.empty()) {
    fail(fmt::format("{}={} is no list of numbers of tasks", name, text(name.c_str())),
         "it looks like 8(x3),4");
  }
  return tasks;
}

// What the nodes have. Where the job as a whole was given so much, as by --ntasks=3 or --gpus=3 on
// two nodes, that is all that is known here.
void SurroundingsReader::slurm_share(const std::string& suffix, int nodes,
                                     const std::vector<int>& tasks) {
  const auto said = [&](const char* name) { return text((name + suffix).c_str()); };
  Surroundings::Share share;
  share.nodes = nodes;
  const std::vector<int> cpus = expand_counts(said("SLURM_JOB_CPUS_PER_NODE"));
  share.cpus_differ =
      std::any_of(cpus.begin(), cpus.end(), [&](int count) { return count != cpus.front(); });
  if (!share.cpus_differ) {
    if (suffix.empty()) share.cpus_per_node = small("SLURM_CPUS_ON_NODE", -1);
    if (share.cpus_per_node < 0 && !cpus.empty()) share.cpus_per_node = cpus.front();
  }
  share.gpus_per_node = gpus(said("SLURM_GPUS_PER_NODE"));
  if (share.gpus_per_node < 0) {
    int all = gpus(said("SLURM_GPUS"));
    const int by_task = gpus(said("SLURM_GPUS_PER_TASK"));
    if (all < 0 && by_task > 0 && !tasks.empty()) {
      all = by_task * std::accumulate(tasks.begin(), tasks.end(), 0);
    }
    const bool here = suffix.empty() && (all < 0 || nodes == 1);
    if (here) share.gpus_per_node = gpus(text("SLURM_GPUS_ON_NODE"));
    if (share.gpus_per_node < 0 && nodes == 1) share.gpus_per_node = all;
    if (share.gpus_per_node < 0) share.gpus = all;
  }
  out_.shares.push_back(share);
}

// The same for a task, which has to do with its own node only.
void SurroundingsReader::slurm_share_of_task() {
  slurm_share("", out_.nodes, out_.tasks_per_node);
  Surroundings::Share& share = out_.shares.back();
  if (share.gpus_per_node < 0) share.gpus_per_node = gpus(text("SLURM_GPUS_ON_NODE"));
}

// "8", "a100:8", "a100:4,v100:2"; -1 for anything else.
int SurroundingsReader::gpus(const std::string& words) {
  int sum = -1;
  for (size_t from = 0; !words.empty() && from <= words.size();) {
    const size_t comma = std::min(words.find(',', from), words.size());
    const std::string word = words.substr(from, comma - from);
    from = comma + 1;
    const size_t colon = word.rfind(':');
    const std::string count = colon == std::string::npos ? word : word.substr(colon + 1);
    if (count.empty() || count.size() > 6 ||
        count.find_first_not_of("0123456789") != std::string::npos) {
      return -1;
    }
    sum = std::max(sum, 0) + std::atoi(count.c_str());
  }
  return sum;
}

void SurroundingsReader::meet_at_first_node() {
  if (!out_.node_names.empty()) out_.master_address = out_.node_names.front();
  for (int attempt = 0; attempt < kPortsToTry; ++attempt) {
    out_.ports.push_back(
        port_of_job(out_.raw_job_id.empty() ? out_.job_id : out_.raw_job_id, attempt));
  }
  out_.master_port = out_.ports.front();
}

// --- LSF ---
std::optional<Task> SurroundingsReader::jsm_task() {
  return task_of({"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK",
                  "JSM_NAMESPACE_LOCAL_SIZE"});
}

void SurroundingsReader::lsf() {
  if (!jsrun_ && !has("LSB_JOBID")) return;
  out_.launcher = Launcher::lsf;
  out_.job_id = text("LSB_JOBID");
  out_.words = out_.job_id.empty() ? "LSF" : fmt::format("LSF job {}", out_.job_id);
  if (jsrun_) {
    out_.task = jsm_task();  // again: for the names of its variables
    out_.step_id = text("PMIX_NAMESPACE");
  }
  lsf_hosts();
  if (jsrun_ && jsrun_->nodes > 0) {
    out_.nodes = jsrun_->nodes;
    out_.node = jsrun_->node;
  }
  if (!out_.job_id.empty()) meet_at_first_node();
  master();
}

// "batch1 1 c1 42 c2 42". The first with one slot only is where the script runs, which takes part
// in nothing.
void SurroundingsReader::lsf_hosts() {
  std::vector<std::string> words;
  const std::string list = text("LSB_MCPU_HOSTS");
  for (size_t from = 0; from < list.size();) {
    const size_t end = std::min(list.find(' ', from), list.size());
    if (end > from) words.push_back(list.substr(from, end - from));
    from = end + 1;
  }
  if (words.size() % 2 != 0) {
    fail(fmt::format("LSB_MCPU_HOSTS={} are no pairs of a host and its slots", list),
         "do not set it by hand: LSF does");
    return;
  }
  const bool launch_node = words.size() > 2 && words[1] == "1" && words[3] != "1";
  for (size_t i = launch_node ? 2 : 0; i < words.size(); i += 2) {
    out_.node_names.push_back(words[i]);
  }
  out_.nodes = static_cast<int>(out_.node_names.size());
}

}  // namespace mtl
