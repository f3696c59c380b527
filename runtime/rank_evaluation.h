// A rank's evaluations: the loss on the data that is not trained on, of each of its sets and of
// all, and what the model writes behind the run's prompts.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/engine/time_left.h"
#include "runtime/engine/trainer.h"
#include "runtime/metrics/reporter.h"
#include "runtime/run.h"

namespace mtl {

class RankEvaluation {
 public:
  // All of them outlive it. `reporter`: null on ranks that report nothing. `time_left` learns how
  // long evaluations and texts take.
  RankEvaluation(const CheckedRun& run, Trainer& trainer, Reporter* reporter, TimeLeft& time_left);

  // All ranks together, after `step` steps.
  void run(int64_t step);
  // Whether the newest one was after `step` steps.
  bool is_of(int64_t step) const { return step_ == step; }
  // The newest; nothing before the first, and where there is nothing to evaluate on.
  const std::optional<double>& valid_loss() const { return valid_loss_; }
  const std::vector<SetLoss>& valid_sets() const { return valid_sets_; }

 private:
  void measure_valid_loss();
  void generate();

  const CheckedRun& run_;
  Trainer& trainer_;
  Reporter* const reporter_;
  TimeLeft& time_left_;
  int64_t step_ = -1;
  std::optional<double> valid_loss_;
  std::vector<SetLoss> valid_sets_;
};

}  // namespace mtl
