// What a launcher tells a rank through its environment, and how the rank joins its job with it.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "rendezvous/store.h"
#include "runtime/comm/world.h"

namespace mtl {

// Where our agent has not started this rank, its place comes from whoever has: see
// rendezvous/surroundings.h.
struct WorkerEnvironment {
  int rank = 0;          // RANK
  int world = 1;         // WORLD_SIZE
  int local_rank = 0;    // LOCAL_RANK
  int local_world = 1;   // LOCAL_WORLD_SIZE; of one process: the world; 0 = not known
  int node = 0;          // GROUP_RANK; -1 = not known
  int nodes = 1;         // GROUP_WORLD_SIZE; 0 = not known
  int rank_threads = 0;  // MTL_RANK_THREADS; 0 = one rank, in this process alone
  int generation = 0;    // TORCHELASTIC_RESTART_COUNT
  int token_fd = -1;     // MTL_TOKEN_FD
  int progress_fd = -1;  // MTL_PROGRESS_FD
  // MTL_RUN_FENCE. 0: started by hand or by another launcher there is nobody who would go on
  // without us.
  int fence = 0;
  // MTL_JOB_AGE_S: since the job began, when these ranks were started; those before them may have
  // failed.
  int job_age_s = 0;
  int comm_timeout_s = 0;             // MTL_COMM_TIMEOUT_S; 0 = the usual
  int omp_threads = 0;                // OMP_NUM_THREADS; 0 = not given
  std::string address = "127.0.0.1";  // MASTER_ADDR
  int port = 0;                       // MASTER_PORT
  std::string node_address;           // MTL_NODE_ADDRESS; "" = not given
  // Of a rank that another launcher has started: of this start, the same for all its ranks, where
  // that launcher tells one start from the next ("srun-1234.0"); and MASTER_ADDR, if it is set.
  std::string start;
  std::string foreign_address;
  bool is_foreign() const { return token_fd < 0 && rank_threads == 0 && world > 1; }
};

// Throws Error "worker.environment" or "surroundings.value" (Exit::environment) for a number that
// is none, and for what contradicts itself.
WorkerEnvironment read_worker_environment();

// The job's token, from its descriptor. Throws Error "worker.token" (Exit::environment).
std::string read_token(int fd);

// The store of the job. Throws what connect_store() does.
std::unique_ptr<Store> join_store(const WorkerEnvironment& own, const std::string& token,
                                  std::chrono::milliseconds patience);
// How this rank takes part in the job's world.
WorldOptions world_options(const WorkerEnvironment& own, const std::string& token);

}  // namespace mtl
