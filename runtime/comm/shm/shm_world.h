// The shared-memory transport: the ranks of one host, processes or threads. Every rank backs its
// arena by a memfd that the others map; futex barriers.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "rendezvous/store.h"
#include "runtime/comm/communicator.h"

namespace mtl {

struct ShmOptions {
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{600'000};  // of one collective
  std::string prefix = "shm/";                 // of the keys in the store (holds the generation)
};

// Rendezvous through `store` (peers find each other's memfd by pid and descriptor number under
// /proc; threads of one process work too).
std::unique_ptr<CommWorld> make_shm_world(Store& store, const ShmOptions& options);

}  // namespace mtl
