// The main of a worker: of one rank, or of all ranks of a machine as threads.
#pragma once

#include <filesystem>

#include "common/error.h"

namespace mtl {

// Trains this process's rank of the run in `run_dir`. Reads RANK, WORLD_SIZE, LOCAL_RANK,
// LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RESTART_COUNT (the generation),
// MTL_TOKEN_FD (a descriptor to read the run's token from), MTL_PROGRESS_FD (see
// metrics/reporter.h), OMP_NUM_THREADS (of each rank). With MTL_RANK_THREADS = WORLD_SIZE it trains
// all ranks, each in a thread of its own, and needs no address, port and token. Returns Exit::done,
// or Exit::requeue when it stopped on SIGINT/SIGTERM with a complete checkpoint. Throws Error: with
// threads that of the rank that failed first, named in its text.
Exit run_worker(const std::filesystem::path& run_dir);

}  // namespace mtl
