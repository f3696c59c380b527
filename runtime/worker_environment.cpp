#include "runtime/worker_environment.h"

#include <algorithm>
#include <cstdlib>
#include <unistd.h>

#include <fmt/format.h>

#include "common/error.h"
#include "rendezvous/surroundings.h"

namespace mtl {

namespace {

// An integer variable of the environment; `fallback` if it is not set.
int environment_int(const char* name, int fallback) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return fallback;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*end != '\0' || value < 0 || value > 1'000'000'000) {
    throw Error(Exit::environment,
                {.code = "worker.environment",
                 .what = fmt::format("{}={} is not a number that fits", name, text),
                 .help = "start workers with `mtl launch`"});
  }
  return static_cast<int>(value);
}

std::string environment_text(const char* name, const std::string& fallback) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? fallback : text;
}

// The first of OpenMP's list of a number for each level of nesting.
int threads_wanted() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  return text == nullptr ? 0 : static_cast<int>(std::strtol(text, nullptr, 10));
}

// A pod is one rank here: RANK counts pods there and not processes, so a pod of several ranks needs
// an agent.
void take_pod(const Surroundings& around, WorkerEnvironment& own) {
  const std::string& each = around.processes_per_node;
  if (!each.empty() && each != "1") {
    throw Error(Exit::environment,
                {.code = "worker.environment",
                 .what = fmt::format("{}: its pods have PET_NPROC_PER_NODE={} ranks each, and mtl "
                                     "worker is one rank",
                                     around.words, each),
                 .help = "start mtl launch train.yaml in the pods; it starts the ranks"});
  }
  own.rank = std::max(0, around.node);
  own.world = around.nodes > 0 ? around.nodes : 1;
  own.local_rank = 0;
  own.local_world = 1;
  own.node = own.rank;
  own.nodes = own.world;
}

void take_place(const Surroundings& around, WorkerEnvironment& own) {
  if (around.task) {
    own.rank = around.task->rank;
    own.world = around.task->world;
    own.local_rank = around.task->local_rank;
    own.local_world = around.task->local_world;
    own.node = around.task->node;
    own.nodes = around.task->nodes;
  } else if (around.launcher == Launcher::kubernetes) {
    take_pod(around, own);
  } else if (around.launcher == Launcher::slurm || around.launcher == Launcher::lsf) {
    own.rank = 0;  // an allocation: nobody has started ranks
    own.world = 1;
  }
  own.start = fmt::format("{}-{}.{}.{}-{}", launcher_name(around.launcher), around.job_id,
                          around.step_id, around.restarts, own.world);
  // Where its launcher has no number for a start, the port of its ranks tells it from others.
  if (around.master_port > 0) {
    own.start += fmt::format("-{}.{}", around.master_address, around.master_port);
  }
  own.foreign_address = environment_text("MASTER_ADDR", "");
}

}  // namespace

WorkerEnvironment read_worker_environment() {
  WorkerEnvironment own;
  own.rank = environment_int("RANK", own.rank);
  own.world = environment_int("WORLD_SIZE", own.world);
  own.local_rank = environment_int("LOCAL_RANK", own.local_rank);
  own.local_world = environment_int("LOCAL_WORLD_SIZE", own.local_world);
  own.node = environment_int("GROUP_RANK", own.node);
  own.nodes = environment_int("GROUP_WORLD_SIZE", own.nodes);
  own.rank_threads = environment_int("MTL_RANK_THREADS", own.rank_threads);
  own.generation = environment_int("TORCHELASTIC_RESTART_COUNT", own.generation);
  own.token_fd = environment_int("MTL_TOKEN_FD", own.token_fd);
  own.progress_fd = environment_int("MTL_PROGRESS_FD", own.progress_fd);
  own.fence = environment_int("MTL_RUN_FENCE", own.fence);
  own.job_age_s = environment_int("MTL_JOB_AGE_S", own.job_age_s);
  own.comm_timeout_s = environment_int("MTL_COMM_TIMEOUT_S", own.comm_timeout_s);
  own.omp_threads = threads_wanted();
  own.address = environment_text("MASTER_ADDR", own.address);
  own.port = environment_int("MASTER_PORT", own.port);
  own.node_address = environment_text("MTL_NODE_ADDRESS", own.node_address);
  Diagnostics diagnostics;
  const Surroundings around = surroundings_here(diagnostics);
  diagnostics.throw_if_errors(Exit::environment);
  if (around.launcher != Launcher::mtl) take_place(around, own);
  return own;
}

std::string read_token(int fd) {
  std::string token(256, '\0');
  const ssize_t n = fd >= 0 ? pread(fd, token.data(), token.size(), 0) : -1;
  if (n <= 0) {
    throw Error(Exit::environment,
                {.code = "worker.token",
                 .what = "this worker was given no token to join its job with (MTL_TOKEN_FD)",
                 .help = "start workers with `mtl launch`"});
  }
  token.resize(static_cast<size_t>(n));
  return token;
}

std::unique_ptr<Store> join_store(const WorkerEnvironment& own, const std::string& token,
                                  std::chrono::milliseconds patience) {
  return connect_store({.address = own.address,
                        .port = static_cast<uint16_t>(own.port),
                        .token = token,
                        .generation = own.generation,
                        .connect_timeout = patience});
}

WorldOptions world_options(const WorkerEnvironment& own, const std::string& token) {
  WorldOptions options = {.rank = own.rank,
                          .size = own.world,
                          .address = own.node_address.empty() ? "127.0.0.1" : own.node_address,
                          .token = token,
                          .generation = own.generation};
  if (own.comm_timeout_s > 0) options.timeout = std::chrono::seconds(own.comm_timeout_s);
  return options;
}

}  // namespace mtl
