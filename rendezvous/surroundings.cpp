#include "rendezvous/surroundings.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include <fmt/format.h>

#include "rendezvous/node_list.h"

namespace mtl {

namespace {

using Task = Surroundings::Task;

// Steps that SLURM makes for itself: the batch script, the shell of an interactive salloc.
constexpr long kPseudoSteps = 0xfffffff0;
constexpr int kPortsToTry = 16;

class Reader {
 public:
  Reader(const std::function<const char*(const char*)>& variable, Diagnostics& diagnostics)
      : variable_(variable), diagnostics_(diagnostics) {}

  Surroundings read() {
    step_ = slurm_step();
    jsrun_ = jsm_task();
    // Some set RANK for one process of many, by mistake, or for a pod.
    if (has("MTL_TOKEN_FD") || has("MTL_RANK_THREADS")) {
      ranked(Launcher::mtl, "mtl launch");
    } else if (has("TORCHELASTIC_RUN_ID")) {
      ranked(Launcher::torchelastic, "torchrun");
    } else if (!is_pod_rank()) {
      ranked(Launcher::hand, "RANK and WORLD_SIZE");
      if (out_.launcher == Launcher::hand) check_against_others();
    }
    if (out_.launcher == Launcher::none) mpi();
    if (out_.launcher == Launcher::none) slurm_task();
    if (out_.launcher == Launcher::none) lsf();
    if (out_.launcher == Launcher::none) kubernetes();
    if (out_.launcher == Launcher::none) slurm_allocation();
    if (out_.task) check(*out_.task);
    return std::move(out_);
  }

 private:
  std::string text(const char* name) const {
    const char* value = variable_(name);
    return value == nullptr ? "" : value;
  }
  bool has(const char* name) const { return !text(name).empty(); }

  void fail(std::string what, std::string help) {
    diagnostics_.add(
        {.code = "surroundings.value", .what = std::move(what), .help = std::move(help)});
  }

  // What is not set is `fallback`; what is no number is an error, and `fallback` too.
  long number(const char* name, long fallback) {
    const std::string value = text(name);
    if (value.empty()) return fallback;
    char* end = nullptr;
    const long parsed = std::strtol(value.c_str(), &end, 10);
    const bool digits = value.find_first_not_of("0123456789") == std::string::npos;
    if (digits && *end == '\0' && parsed <= 0xffffffffL) return parsed;
    fail(fmt::format("{}={} is not a number that fits", name, value),
         fmt::format("unset {}, or correct what sets it", name));
    return fallback;
  }
  int small(const char* name, int fallback) {
    const long value = number(name, fallback);
    if (value <= 1'000'000'000) return static_cast<int>(value);
    fail(fmt::format("{}={} is not a number that fits", name, value),
         fmt::format("unset {}, or correct what sets it", name));
    return fallback;
  }

  // The names of one kind of variables for the same things; nullptr = there is none.
  struct Names {
    const char* rank;
    const char* world;
    const char* local_rank;
    const char* local_world;
  };

  // A rank without a number of ranks is one by accident.
  std::optional<Task> task_of(const Names& names) {
    if (!has(names.rank) || !has(names.world)) return std::nullopt;
    Task task;
    task.rank = small(names.rank, 0);
    task.world = small(names.world, 1);
    const bool local = names.local_rank != nullptr && has(names.local_rank);
    task.local_rank = local ? small(names.local_rank, 0) : 0;
    task.local_world =
        names.local_world != nullptr && has(names.local_world) ? small(names.local_world, 0) : 0;
    if (task.world == 1) task.local_world = 1;
    names_ = names;
    place(task);
    return task;
  }

  // Node and nodes where the ranks of a node follow one another and all nodes have as many.
  static void place(Task& task) {
    task.node = -1;
    task.nodes = 0;
    if (task.local_world <= 0) return;
    if (task.world == task.local_world) {
      task.node = 0;
      task.nodes = 1;
    } else if (task.world % task.local_world == 0 &&
               task.rank % task.local_world == task.local_rank) {
      task.node = task.rank / task.local_world;
      task.nodes = task.world / task.local_world;
    }
  }

  // RANK counts pods and not processes: PyTorchJob's, which has PET_* beside it (or, in old
  // versions, has not), and Volcano's.
  bool is_pod_rank() const {
    if (has("PET_NNODES") || has("PET_NODE_RANK") || has("PET_NPROC_PER_NODE")) return true;
    return has("KUBERNETES_SERVICE_HOST") && !has("LOCAL_RANK");
  }

  void ranked(Launcher launcher, const char* words) {
    const auto task = task_of({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
    if (!task) return;
    out_.launcher = launcher;
    out_.words = words;
    out_.task = task;
    if (has("GROUP_RANK")) out_.task->node = small("GROUP_RANK", 0);
    if (has("GROUP_WORLD_SIZE")) out_.task->nodes = small("GROUP_WORLD_SIZE", 1);
    out_.nodes = out_.task->nodes;
    out_.node = out_.task->node;
    out_.job_id = text("TORCHELASTIC_RUN_ID");
    out_.restarts = small("TORCHELASTIC_RESTART_COUNT", 0);
    master();
  }

  // MASTER_ADDR and MASTER_PORT are the same to everybody.
  void master() {
    if (has("MASTER_ADDR")) out_.master_address = text("MASTER_ADDR");
    if (!has("MASTER_PORT")) return;
    const int port = small("MASTER_PORT", 0);
    if (port < 1 || port > 65535) {
      fail(fmt::format("MASTER_PORT={} is no port", port), "use a number from 1 to 65535");
      return;
    }
    out_.master_port = port;
  }

  // A script that exports RANK=$SLURM_PROCID before srun gives every task rank 0.
  void check_against_others() {
    const auto other = [&](const std::optional<Task>& task, const char* whose, const char* rank) {
      if (!task || task->world != out_.task->world || task->rank == out_.task->rank) return;
      fail(fmt::format("RANK={} of WORLD_SIZE={}, but this is rank {} of {} that {} has started "
                       "({}): RANK is the same in several of them",
                       out_.task->rank, out_.task->world, task->rank, task->world, whose, rank),
           fmt::format("do not export RANK; {} says it", whose));
    };
    const Task own = *out_.task;
    const Names names = names_;
    other(step_, "srun", "SLURM_PROCID");
    other(jsrun_, "jsrun", "JSM_NAMESPACE_RANK");
    other(task_of({"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", nullptr, nullptr}), "mpirun",
          "OMPI_COMM_WORLD_RANK");
    names_ = names;
    out_.task = own;
  }

  static bool same(const std::optional<Task>& a, const std::optional<Task>& b) {
    return a && b && a->rank == b->rank && a->world == b->world;
  }

  void mpi() {
    const auto open_mpi = task_of({"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                   "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"});
    if (open_mpi && !same(open_mpi, jsrun_)) {
      // The daemons of one mpirun have one job, which every start changes.
      std::string step = text("OMPI_MCA_ess_base_jobid");
      if (step.empty()) step = text("PMIX_NAMESPACE");
      found_mpi(*open_mpi, "Open MPI", std::move(step));
      return;
    }
    const auto mvapich = task_of({"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
                                  "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"});
    if (mvapich && !same(mvapich, step_)) {
      found_mpi(*mvapich, "MVAPICH", text("PMI_ID"));
      return;
    }
    const auto mpich = task_of({"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"});
    if (mpich && !same(mpich, step_) && !same(mpich, jsrun_)) found_mpi(*mpich, "MPICH", "");
  }

  void found_mpi(const Task& task, const char* words, std::string step) {
    out_.launcher = Launcher::mpi;
    out_.words = words;
    out_.task = task;
    out_.nodes = task.nodes;
    out_.node = task.node;
    out_.step_id = std::move(step);
    if (has("SLURM_JOB_ID")) {
      slurm_job();
      slurm_resources();
    } else if (has("LSB_JOBID")) {
      out_.job_id = text("LSB_JOBID");
    }
    master();
  }

  // --- SLURM ---

  std::optional<Task> slurm_step() {
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

  void slurm_task() {
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
    tasks_per_node("SLURM_STEP_TASKS_PER_NODE");
    if (!out_.tasks_per_node.empty() &&
        std::accumulate(out_.tasks_per_node.begin(), out_.tasks_per_node.end(), 0) !=
            step_->world) {
      fail(fmt::format("SLURM_STEP_TASKS_PER_NODE={} are not SLURM_STEP_NUM_TASKS={}",
                       text("SLURM_STEP_TASKS_PER_NODE"), step_->world),
           "start this with srun itself; its variables do not fit one another");
    }
    slurm_resources();
    meet_at_first_node();
    master();
  }

  void slurm_allocation() {
    if (!has("SLURM_JOB_ID")) return;
    out_.launcher = Launcher::slurm;
    slurm_job();
    out_.batch = text("ENVIRONMENT") == "BATCH" || has("SLURM_PROCID");
    out_.words = fmt::format("SLURM job {}", out_.job_id);
    node_names("SLURM_JOB_NODELIST");
    out_.nodes = small(has("SLURM_JOB_NUM_NODES") ? "SLURM_JOB_NUM_NODES" : "SLURM_NNODES",
                       static_cast<int>(out_.node_names.size()));
    if (!out_.node_names.empty() && out_.nodes != static_cast<int>(out_.node_names.size())) {
      fail(fmt::format("SLURM_JOB_NUM_NODES={}, but SLURM_JOB_NODELIST={} are {}", out_.nodes,
                       text("SLURM_JOB_NODELIST"), out_.node_names.size()),
           "do not set these variables by hand: SLURM does");
    }
    if (out_.batch) out_.node = 0;  // where SLURM runs the script
    tasks_per_node("SLURM_TASKS_PER_NODE");
    slurm_resources();
    meet_at_first_node();
  }

  void slurm_job() {
    out_.raw_job_id = text("SLURM_JOB_ID");
    out_.job_id = out_.raw_job_id;
    if (has("SLURM_ARRAY_JOB_ID") && has("SLURM_ARRAY_TASK_ID")) {
      out_.job_id = fmt::format("{}_{}", text("SLURM_ARRAY_JOB_ID"), text("SLURM_ARRAY_TASK_ID"));
    }
    out_.restarts = small("SLURM_RESTART_COUNT", 0);
  }

  void node_names(const char* name) {
    if (!has(name)) return;
    Diagnostics wrong;
    out_.node_names = expand_node_list(text(name), wrong);
    for (const Diagnostic& diagnostic : wrong.all()) {
      Diagnostic own = diagnostic;
      own.code = "surroundings.value";
      own.what = fmt::format("{}: {}", name, diagnostic.what);
      diagnostics_.add(std::move(own));
    }
  }

  void tasks_per_node(const char* name) {
    if (!has(name)) return;
    out_.tasks_per_node = expand_counts(text(name));
    if (out_.tasks_per_node.empty()) {
      fail(fmt::format("{}={} is no list of numbers of tasks", name, text(name)),
           "it looks like 8(x3),4");
    }
  }

  void slurm_resources() {
    out_.cpus_per_node = small("SLURM_CPUS_ON_NODE", -1);
    if (out_.cpus_per_node < 0) {
      const std::vector<int> cpus = expand_counts(text("SLURM_JOB_CPUS_PER_NODE"));
      if (!cpus.empty()) out_.cpus_per_node = *std::min_element(cpus.begin(), cpus.end());
    }
    out_.gpus_per_node = gpus(text("SLURM_GPUS_PER_NODE"));
    if (out_.gpus_per_node < 0) out_.gpus_per_node = gpus(text("SLURM_GPUS_ON_NODE"));
    const int all = gpus(text("SLURM_GPUS"));
    if (out_.gpus_per_node < 0 && all >= 0 && out_.nodes > 0 && all % out_.nodes == 0) {
      out_.gpus_per_node = all / out_.nodes;
    }
  }

  // "8", "a100:8", "a100:4,v100:2"; -1 for anything else.
  static int gpus(const std::string& words) {
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

  void meet_at_first_node() {
    if (!out_.node_names.empty()) out_.master_address = out_.node_names.front();
    for (int attempt = 0; attempt < kPortsToTry; ++attempt) {
      out_.ports.push_back(
          port_of_job(out_.raw_job_id.empty() ? out_.job_id : out_.raw_job_id, attempt));
    }
    out_.master_port = out_.ports.front();
  }

  // --- LSF ---

  std::optional<Task> jsm_task() {
    return task_of({"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK",
                    "JSM_NAMESPACE_LOCAL_SIZE"});
  }

  void lsf() {
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
  void lsf_hosts() {
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

  // --- Kubernetes ---

  void kubernetes() {
    const bool pet = has("PET_NNODES") || has("PET_NODE_RANK") || has("PET_NPROC_PER_NODE");
    const bool indexed = has("JOB_COMPLETION_INDEX");
    const bool ranked = has("KUBERNETES_SERVICE_HOST") && has("RANK") && has("WORLD_SIZE");
    if (!pet && !indexed && !ranked) return;
    out_.launcher = Launcher::kubernetes;
    out_.job_id = text("HOSTNAME");
    if (indexed) out_.node = small("JOB_COMPLETION_INDEX", 0);
    if (pet) {
      pet_nodes();
    } else if (ranked) {
      // One process a pod, as far as the one who set it knows.
      out_.node = small("RANK", 0);
      out_.nodes = small("WORLD_SIZE", 1);
    }
    out_.words = out_.node >= 0 ? fmt::format("pod {}", out_.node) : "a pod";
    // A pod's name is that of its job with the index behind it, and some letters perhaps.
    if (!out_.job_id.empty()) out_.words += fmt::format(" ({})", out_.job_id);
    if (out_.nodes > 0 && out_.node >= out_.nodes) {
      fail(fmt::format("pod {} of {} pods: they count from 0", out_.node, out_.nodes),
           "PET_NODE_RANK, RANK or JOB_COMPLETION_INDEX is not that of this job: unset it");
    }
    if (pet || ranked) master();
    if (has("PET_MASTER_ADDR")) out_.master_address = text("PET_MASTER_ADDR");
    if (has("PET_MASTER_PORT")) out_.master_port = small("PET_MASTER_PORT", 0);
  }

  // PyTorchJob: RANK is the pod's index, WORLD_SIZE pods x processes.
  void pet_nodes() {
    const std::string nodes = text("PET_NNODES");
    const bool range = nodes.find(':') != std::string::npos;  // elastic: ranks come by meeting
    if (!nodes.empty() && !range) out_.nodes = small("PET_NNODES", 0);
    if (has("PET_NODE_RANK")) {
      out_.node = small("PET_NODE_RANK", 0);
    } else if (has("RANK") && !range) {
      out_.node = small("RANK", 0);
    }
    out_.processes_per_node = text("PET_NPROC_PER_NODE");
  }

  void check(const Task& task) {
    const char* help =
        "these variables contradict one another: unset those that come from somewhere else";
    if (task.world < 1) {
      fail(fmt::format("{}=0: a job of no ranks", names_.world), help);
    } else if (task.rank >= task.world) {
      fail(fmt::format("{}={} is beyond {}={}: ranks count from 0", names_.rank, task.rank,
                       names_.world, task.world),
           help);
    } else if (task.local_world > task.world) {
      fail(fmt::format("{}={} is beyond {}={}", names_.local_world, task.local_world, names_.world,
                       task.world),
           help);
    } else if (task.local_world > 0 && task.local_rank >= task.local_world) {
      fail(fmt::format("{}={} is beyond {}={}: ranks count from 0", names_.local_rank,
                       task.local_rank, names_.local_world, task.local_world),
           help);
    } else if (task.nodes > 0 && task.node >= task.nodes) {
      fail(fmt::format("node {} of {} nodes: they count from 0", task.node, task.nodes), help);
    }
  }

  const std::function<const char*(const char*)>& variable_;
  Diagnostics& diagnostics_;
  Surroundings out_;
  std::optional<Task> step_;   // of srun, whoever may run in it
  std::optional<Task> jsrun_;  // the same
  Names names_{};              // of the task found last
};

}  // namespace

const char* launcher_name(Launcher launcher) {
  switch (launcher) {
    case Launcher::none:
      return "nobody";
    case Launcher::mtl:
      return "mtl launch";
    case Launcher::torchelastic:
      return "torchrun";
    case Launcher::hand:
      return "RANK and WORLD_SIZE";
    case Launcher::mpi:
      return "mpirun";
    case Launcher::slurm:
      return "srun";
    case Launcher::lsf:
      return "jsrun";
    case Launcher::kubernetes:
      return "Kubernetes";
  }
  return "";
}

Surroundings surroundings_of(const std::function<const char*(const char*)>& variable,
                             Diagnostics& diagnostics) {
  return Reader(variable, diagnostics).read();
}

Surroundings surroundings_here(Diagnostics& diagnostics) {
  return surroundings_of([](const char* name) { return std::getenv(name); }, diagnostics);
}

int port_of_job(const std::string& job_id, int attempt) {
  // Jobs that follow one another have ports that follow one another, so they differ for long.
  uint64_t id = 0;
  const bool digits =
      !job_id.empty() && job_id.find_first_not_of("0123456789") == std::string::npos;
  for (const char c : job_id) {
    id = digits ? (id * 10 + static_cast<uint64_t>(c - '0')) % 10'000
                : (id ^ static_cast<unsigned char>(c)) * 1'099'511'628'211ULL + 97;
  }
  // Tries of one job are far from the first of its neighbours; 10,000 is no multiple of 7 or 13.
  return 20'000 + static_cast<int>((id + 1'009ULL * static_cast<uint64_t>(attempt)) % 10'000);
}

}  // namespace mtl
