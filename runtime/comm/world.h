// The CPU transport of a job: shared memory for groups whose ranks are on one host, TCP for groups
// that span hosts. One rule decides per group, so a layout that keeps tensor parallelism within a
// host pays the network only for what crosses it.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "common/error.h"
#include "rendezvous/store.h"
#include "runtime/comm/communicator.h"

namespace mtl {

struct WorldOptions {
  int rank = 0;
  int size = 1;
  std::string address = "127.0.0.1";  // of this host, numeric: where peers of other hosts reach us
  std::string token;                  // proves every TCP connection; required when hosts differ
  int64_t generation = 0;             // of the job: connections of others are dropped
  std::chrono::milliseconds timeout{600'000};  // of one collective
};

// What is wrong with an MTL_COMM: comm.transport (Exit::environment).
std::optional<Error> wrong_transport(const std::string& name);

// Rendezvous through `store`. Throws what Communicator documents, and "comm.connect"
// (Exit::environment) when a peer's address cannot be reached, with both hosts named.
std::unique_ptr<CommWorld> make_cpu_world(Store& store, const WorldOptions& options);

}  // namespace mtl
