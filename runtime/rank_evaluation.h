// A rank's evaluations: the loss on the data that is not trained on, of each of its sets and of
// all, and what the model writes behind the run's prompts. They are left when somebody asks for a
// stop, with nothing told of what is half done; the run that goes on does it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/time_left.h"
#include "runtime/engine/trainer.h"
#include "runtime/metrics/reporter.h"
#include "runtime/run.h"

namespace mtl {

// What an evaluation has still to do: the texts come behind the loss.
enum class Unevaluated { nothing, all, texts };

class RankEvaluation {
 public:
  // All references outlive it. `stop`: whether this rank is asked to. `reporter`: null on ranks
  // that report nothing. `time_left` learns how long evaluations and texts take.
  RankEvaluation(const CheckedRun& run, std::function<bool()> stop, Trainer& trainer,
                 Reporter* reporter, TimeLeft& time_left);

  // All ranks together, after `step` steps. False on all of them if it was left, since some rank
  // was asked to stop.
  bool run(int64_t step);
  // The rest of one that an earlier run left, behind `valid_loss` if it had got so far.
  bool go_on(int64_t step, Unevaluated rest, std::optional<double> valid_loss);
  // What the newest one has not done.
  Unevaluated rest() const { return rest_; }
  // Whether there is a loss after `step` steps, or nothing to evaluate on.
  bool is_of(int64_t step) const { return step_ == step; }
  // The newest; nothing before the first, and where there is nothing to evaluate on.
  const std::optional<double>& valid_loss() const { return valid_loss_; }
  const std::vector<SetLoss>& valid_sets() const { return valid_sets_; }

 private:
  bool measure_valid_loss(int64_t step);
  bool generate(int64_t step);
  bool all_go_on();
  // Tells that `what` is left, behind so much of it.
  void left(int64_t step, const std::string& what, const std::string& done);

  const CheckedRun& run_;
  const std::function<bool()> stop_;
  Trainer& trainer_;
  Reporter* const reporter_;
  TimeLeft& time_left_;
  int64_t step_ = -1;
  Unevaluated rest_ = Unevaluated::nothing;
  std::optional<double> valid_loss_;
  std::vector<SetLoss> valid_sets_;
};

}  // namespace mtl
