#include "launcher/node/generation.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include <sys/mman.h>
#include <sys/resource.h>

#include <fmt/format.h>

#include "launcher/ranks/worker_env.h"
#include "launcher/system/scratch_folder.h"
#include "rendezvous/store.h"

namespace mtl {

namespace {

[[noreturn]] void no_descriptor(const char* what) {
  throw Error(Exit::environment,
              Diagnostic{.code = "launch.descriptor",
                         .what = fmt::format("cannot make {}: {}", what, std::strerror(errno)),
                         .help = "raise the limit of open files: ulimit -n 65536"});
}

// Told before a million commands are made, not when the descriptors run out. Of a process, both
// ends of two pipes are here until it has started, its log, and its token.
void take_descriptors(size_t processes) {
  constexpr rlim_t kEach = 6, kOthers = 128;
  const rlim_t needed = kEach * processes + kOthers;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = needed;
  if (needed <= limit.rlim_max && setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
  throw Error(Exit::environment,
              Diagnostic{.code = "launch.descriptor",
                         .what = fmt::format("{} ranks on this machine need {} open files, and "
                                             "its limit is {}",
                                             processes, needed, before),
                         .help = "start fewer ranks here, or raise the limit: ulimit -n"});
}

// A worker is in a session of its own, which no terminal keeps from reading: what is typed to the
// shell is not for a job in its background.
bool may_read_input() {
  return isatty(STDIN_FILENO) == 0 || tcgetpgrp(STDIN_FILENO) == getpgrp();
}

// A file without a name that holds the token. Each rank has its own, since ranks that share one
// would share its read position.
Fd token_file(const std::string& token) {
  Fd fd(memfd_create("mtl-token", MFD_CLOEXEC));
  if (!fd || write(fd.get(), token.data(), token.size()) != static_cast<ssize_t>(token.size()) ||
      lseek(fd.get(), 0, SEEK_SET) != 0) {
    no_descriptor("a memory file for the run's token");
  }
  return fd;
}

NodeLayout layout_of(const NodeJob& job, const AssignMessage& assign, uint16_t port) {
  const Roster& roster = assign.roster;
  const RosterNode& own = roster.nodes[static_cast<size_t>(assign.node_rank)];
  const RosterNode& first = roster.nodes.front();
  NodeLayout layout;
  layout.num_nodes = static_cast<int>(roster.nodes.size());
  layout.node_rank = assign.node_rank;
  layout.world = roster.world;
  layout.first_rank = own.first_rank;
  layout.local_ranks = own.slots;
  layout.node_address = own.address;
  const bool as_typed = !job.master_address.empty() && job.interface.empty();
  layout.master_addr = as_typed ? job.master_address : first.address;
  // What node 0 holds; nobody else's business there.
  layout.master_port = assign.node_rank == 0 ? port : first.port;
  layout.run_id = job.run_id;
  layout.restart_count = assign.restart_count;
  layout.max_restarts = job.max_restarts;
  layout.cores = allowed_cores();
  layout.omp_threads = job.omp_threads;
  return layout;
}

std::vector<RankPlacement> placement_of(const NodeJob& job, int ranks) {
  Diagnostics diagnostics;
  const std::vector<RankPlacement> placement =
      place_ranks(inspect_hardware(job.binding != Binding::none),
                  {.ranks = ranks,
                   .use_cpu = job.config.use_cpu,
                   .need_gpu = job.need_gpu,
                   .gpu_ids = job.config.gpu_ids,
                   .binding = job.binding,
                   .omp_threads = job.omp_threads},
                  diagnostics);
  diagnostics.throw_if_errors(Exit::environment);
  return placement;
}

}  // namespace

int node_slots(const NodeJob& job) {
  if (job.slots > 0) return job.slots;
  Diagnostics diagnostics;
  const int slots =
      ranks_of_node(job.slots, inspect_hardware(false), job.config.use_cpu, diagnostics);
  diagnostics.throw_if_errors(Exit::environment);
  return slots;
}

namespace {

bool has_accelerator() {
  if (!inspect_hardware(false).gpus.empty()) return true;
  for (const char* device : {"/dev/kfd", "/dev/dri", "/dev/accel", "/dev/davinci_manager",
                             "/dev/neuron0", "/dev/mlu_dev0"}) {
    if (std::filesystem::exists(device)) return true;
  }
  return false;
}

}  // namespace

LaunchConfig config_here(LaunchConfig config) {
  config.use_cpu = config.use_cpu || !has_accelerator();
  return config;
}

AgentResult run_generation(const NodeJob& job, const AssignMessage& assign,
                           const ReservedPort& port, const JobEars& ears, AgentControl* control) {
  const JobProgram& program = assign.program ? *assign.program : job.program;
  const std::string& token = assign.token.empty() ? job.token : assign.token;
  const NodeLayout layout = layout_of(job, assign, port.port());
  take_descriptors(program.threads ? 1 : static_cast<size_t>(layout.local_ranks));
  AgentOptions agent;
  // Where PyTorch's @record leaves what a rank died of.
  const ScratchFolder errors("mtl-errors");
  const LaunchConfig config = config_here(job.config);
  agent.workers = node_commands(program, config, layout, placement_of(job, layout.local_ranks),
                                program.is_ours ? "" : errors.path().string());
  agent.logs = job.logs;
  if (agent.logs.dir.empty()) agent.logs.dir = program.log_dir;
  agent.grace = job.grace;
  agent.warning_grace = job.warning_grace;
  agent.failure_grace = assign.failure_grace;
  agent.control = control;
  agent.on_output = ears.on_output;
  agent.on_notice = ears.on_notice;

  // Threads of one process need nobody to introduce them to each other.
  const bool meets = program.is_ours && !program.threads;
  std::unique_ptr<StoreServer> store;
  if (meets && assign.node_rank == 0 && layout.world > 1) {
    // Where the ranks look for it. A name, or an address that only others know this node by, may
    // lead to any of its interfaces.
    const bool known = layout.master_addr == layout.node_address;
    store = serve_store({.address = known ? layout.node_address : "::",
                         .port = port.port(),
                         .token = token,
                         .generation = assign.restart_count});
  }
  // As torchrun and accelerate have it, for a debugger's prompt and for pipes. Ranks that share it
  // would take the lines from each other.
  const bool alone = agent.workers.size() == 1 && layout.num_nodes == 1;
  if (control == nullptr && !program.is_ours && alone && may_read_input()) {
    agent.workers.front().inherit[STDIN_FILENO] = STDIN_FILENO;
  }
  std::vector<Fd> held;
  Fd progress;
  for (WorkerCommand& command : agent.workers) {
    if (meets) {
      held.push_back(token_file(token));
      command.inherit[kTokenFd] = held.back().get();
    }
    if (program.is_ours && command.rank == 0) {
      int ends[2];
      if (pipe2(ends, O_CLOEXEC) != 0) no_descriptor("the progress pipe");
      progress = Fd(ends[0]);
      held.emplace_back(ends[1]);
      command.inherit[kProgressFd] = ends[1];
      agent.line_sources.push_back({.fd = progress.get(), .on_line = ears.on_line});
    }
  }
  return run_agent(agent);
}

}  // namespace mtl
