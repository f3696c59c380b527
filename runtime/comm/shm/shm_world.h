// The shared-memory transport: the ranks of one host, processes or threads. Every rank backs its
// arena by a memfd that the others map; futex barriers.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "common/error.h"
#include "rendezvous/store.h"
#include "runtime/comm/communicator.h"

namespace mtl {

struct ShmOptions {
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{600'000};  // of one collective
  std::string prefix = "shm/";                 // of the keys in the store (holds the generation)
  std::vector<int> job_ranks = {};  // by rank: what errors call the ranks; empty = as they are
};

class ShmWorld : public CommWorld {
 public:
  // Ends the world for all its ranks, for a reason from outside.
  virtual void end(const Error& error) = 0;
};

// Rendezvous through `store` (peers find each other's memfd by pid and descriptor number under
// /proc; threads of one process work too).
std::unique_ptr<ShmWorld> make_shm_world(Store& store, const ShmOptions& options);

}  // namespace mtl
