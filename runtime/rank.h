// A rank's life, in the thread that calls: OpenMP keeps its threads per thread. It goes on from the
// run's newest checkpoint, trains step by step, evaluates and saves when that is due, and ends when
// all steps are done, when it is asked to or when time is up. What it knows only of itself stays in
// its parts: what is told of its steps (rank_reports.h), its evaluations (rank_evaluation.h) and
// its checkpoints (rank_saves.h).
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>

#include "common/error.h"
#include "runtime/comm/communicator.h"
#include "runtime/device/make_device.h"
#include "runtime/run.h"

namespace mtl {

// What a rank is asked by those who started it (worker_signals.h).
struct RankWishes {
  std::function<bool()> stop;        // that it ends
  std::function<bool()> checkpoint;  // whether since the last call
  // Told whether an end at once would lose anything: before the first step it would not, and then
  // `stop` may not come to be asked.
  std::function<void(bool)> something_to_lose;
};

// What the ranks of a process have in common.
struct RankJob {
  const std::filesystem::path& run_dir;
  const CheckedRun& run;
  int progress_fd = -1;  // for the reporter (metrics/reporter.h) of rank 0
  int fence = 0;         // check_fence() (run_directory.h)
  // The job, of which other ranks may have run before.
  std::chrono::steady_clock::time_point began;
  const RankWishes& wishes;
};

// Returns Exit::done, or Exit::requeue when it stopped early with a complete checkpoint. Throws
// Error; its peers have been told of that.
Exit train_rank(const RankJob& job, const MadeDevice& device, CommWorld& world);

// What the failure of another rank does to this one.
bool is_collateral(const Error& error);

}  // namespace mtl
