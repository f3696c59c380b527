// The main of a worker: of one rank, or of all ranks of a machine as threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "common/error.h"

namespace mtl {

// Trains this process's rank of a run. Our own agent gives RANK, WORLD_SIZE, LOCAL_RANK,
// LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RESTART_COUNT (the generation),
// MTL_TOKEN_FD (a descriptor to read the run's token from), MTL_PROGRESS_FD (see
// metrics/reporter.h), OMP_NUM_THREADS (of each rank). With MTL_RANK_THREADS = WORLD_SIZE it trains
// all ranks, each in a thread of its own, and needs no address, port and token. Ranks of other
// launchers (rendezvous/surroundings.h) meet by themselves: runtime/rank_meeting.h. Returns
// Exit::done, or Exit::requeue when it stopped on SIGINT/SIGTERM with a complete checkpoint. Throws
// Error: with threads that of the rank that failed first, named in its text.
struct OpenedRun {
  std::filesystem::path dir;
  int64_t fence = 0;
};
struct WorkerStart {
  std::filesystem::path run_dir;
  // Where there is none yet: rank 0 opens it for so many ranks on so many machines, when the others
  // can hear of it. Nothing for a run that is complete. They meet in `folder`.
  std::filesystem::path folder = {};
  std::function<std::optional<OpenedRun>(int world, int nodes)> open = {};
};
Exit run_worker(const WorkerStart& start);

}  // namespace mtl
