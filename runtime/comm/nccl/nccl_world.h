// The transport of GPUs: NCCL, one rank per GPU.
#pragma once

#include <filesystem>
#include <memory>

#include "rendezvous/store.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/nccl/api.h"
#include "runtime/comm/nccl/streams.h"
#include "runtime/comm/world.h"
#include "runtime/plan/nccl_channels.h"

namespace mtl {

struct NcclOptions {
  const nccl::Api* api = nullptr;  // null: the library that this machine has
  // Of the run: where a failing rank leaves its flight recorder; empty: nowhere.
  std::filesystem::path crash_dir = {};
  // Of messages between two ranks, in one direction; room for two there is always. As much as the
  // CPU's transports buffer.
  int64_t buffered_bytes = kNcclBufferedBytes;
};

// Collective over the world. `store` outlives the world: groups connect through it when they first
// communicate. Throws what Communicator documents, and "comm.nccl_missing", "comm.nccl_version",
// "comm.gpu_shared" (Exit::environment) and "comm.nccl" (Exit::run_failed: NCCL reports an error).
std::unique_ptr<CommWorld> make_nccl_world(Store& store, const WorldOptions& options,
                                           std::unique_ptr<nccl::Streams> streams,
                                           const NcclOptions& nccl = {});

}  // namespace mtl
