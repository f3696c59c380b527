// A rank's checkpoints: what they say of the run, when time or a failed attempt asks for one, what
// is told of them, and what is saved of a run that ends. The files are CheckpointSaver's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "runtime/comm/communicator.h"
#include "runtime/engine/checkpoint_saver.h"
#include "runtime/engine/save_times.h"
#include "runtime/engine/time_left.h"
#include "runtime/engine/time_limit.h"
#include "runtime/engine/trainer.h"
#include "runtime/metrics/reporter.h"
#include "runtime/run.h"

namespace mtl {

class RankSaves {
 public:
  // All of them outlive it. `fence`: see check_fence(). `newest`: the step that the ranks go on
  // from, of which there is a checkpoint, or 0. `reporter`: null on ranks that report nothing.
  // `time_limit` and `time_left` learn how long saves take. `base`: as model_beside_adapters(), on
  // rank 0.
  RankSaves(const std::filesystem::path& run_dir, int fence, int64_t newest, const CheckedRun& run,
            Trainer& trainer, Communicator& all_ranks, Reporter* reporter, TimeLimit& time_limit,
            TimeLeft& time_left, nlohmann::json base);

  // Where the run is.
  struct Here {
    int64_t step = 0;  // that many are done
    double loss = 0;   // of the last one
    std::optional<double> valid_loss = {};
    std::string evaluation_left = {};  // kNotEvaluated or kNotContinued; "" = nothing
  };

  // The step of the newest save begun.
  int64_t newest() const { return newest_; }

  // Whether one is wanted before step `step` beside those that the step's number asks for: as rank
  // 0 sees it.
  bool is_due(int64_t step) const;
  // For the next step's requests, and what the ranks said of it together (CheckpointSaver).
  bool writing() const { return saver_.writing(); }
  void step_done(int64_t done, bool anybody_writing);

  // The rest is for all ranks together. At most one save is under way at a time.
  void save(const Here& here);
  // What the run is to end with. A disk gets a second chance, then that is an error.
  void save_and_wait(const Here& here);
  // The evaluation that the newest checkpoint had left is done.
  void evaluated(const Here& here);
  // What was there before a step that was not done, as what came of it in words.
  std::string save_before_divergence(const Here& here);

 private:
  nlohmann::json state_of_run(const Here& here);
  void begin(const Here& here);
  std::optional<SaveOutcome> report(int64_t done);

  const std::filesystem::path& run_dir_;
  const int fence_;
  const CheckedRun& run_;
  Trainer& trainer_;
  Communicator& all_ranks_;
  Reporter* const reporter_;
  TimeLimit& time_limit_;
  TimeLeft& time_left_;
  const nlohmann::json base_;
  SaveTimes times_;
  CheckpointSaver saver_;
  int64_t newest_;
  int64_t complete_;    // the step of the newest that is complete, or 0
  bool begun_ = false;  // a save of this start
};

}  // namespace mtl
