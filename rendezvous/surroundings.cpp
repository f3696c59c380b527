#include "rendezvous/surroundings.h"

#include <cstdlib>

#include <fmt/format.h>

#include "rendezvous/surroundings_reader.h"

namespace mtl {

using Task = Surroundings::Task;

Surroundings SurroundingsReader::read() {
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

std::string SurroundingsReader::text(const char* name) const {
  const char* value = variable_(name);
  return value == nullptr ? "" : value;
}

bool SurroundingsReader::has(const char* name) const {
  return !text(name).empty();
}

void SurroundingsReader::fail(std::string what, std::string help) {
  diagnostics_.add(
      {.code = "surroundings.value", .what = std::move(what), .help = std::move(help)});
}

// What is not set is `fallback`; what is no number is an error, and `fallback` too.
long SurroundingsReader::number(const char* name, long fallback) {
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

int SurroundingsReader::small(const char* name, int fallback) {
  const long value = number(name, fallback);
  if (value <= 1'000'000'000) return static_cast<int>(value);
  fail(fmt::format("{}={} is not a number that fits", name, value),
       fmt::format("unset {}, or correct what sets it", name));
  return fallback;
}

// A rank without a number of ranks is one by accident.
std::optional<Task> SurroundingsReader::task_of(const Names& names) {
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
void SurroundingsReader::place(Task& task) {
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
bool SurroundingsReader::is_pod_rank() const {
  if (has("PET_NNODES") || has("PET_NODE_RANK") || has("PET_NPROC_PER_NODE")) return true;
  return has("KUBERNETES_SERVICE_HOST") && !has("LOCAL_RANK");
}

void SurroundingsReader::ranked(Launcher launcher, const char* words) {
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
void SurroundingsReader::master() {
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
void SurroundingsReader::check_against_others() {
  const auto other = [&](const std::optional<Task>& task, const char* whose, const char* rank) {
    // A task may start several ranks by hand, but never fewer than one.
    const bool too_few = task && task->world > out_.task->world;
    const bool other_rank =
        task && task->world == out_.task->world && task->rank != out_.task->rank;
    if (!too_few && !other_rank) return;
    fail(fmt::format("RANK={} of WORLD_SIZE={}, but this is rank {} of {} that {} has started "
                     "({}): RANK is the same in several of them",
                     out_.task->rank, out_.task->world, task->rank, task->world, whose, rank),
         fmt::format("unset RANK and WORLD_SIZE, or do not export them; {} says it", whose));
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

bool SurroundingsReader::same(const std::optional<Task>& a, const std::optional<Task>& b) {
  return a && b && a->rank == b->rank && a->world == b->world;
}

void SurroundingsReader::mpi() {
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

void SurroundingsReader::found_mpi(const Task& task, const char* words, std::string step) {
  out_.launcher = Launcher::mpi;
  out_.words = words;
  out_.task = task;
  out_.nodes = task.nodes;
  out_.node = task.node;
  out_.step_id = std::move(step);
  if (has("SLURM_JOB_ID")) {
    slurm_job();
  } else if (has("LSB_JOBID")) {
    out_.job_id = text("LSB_JOBID");
  }
  master();
}

// --- Kubernetes ---
void SurroundingsReader::kubernetes() {
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
void SurroundingsReader::pet_nodes() {
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

void SurroundingsReader::check(const Task& task) {
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
  return SurroundingsReader(variable, diagnostics).read();
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
