// How many sequences each step takes, where that changes during a run: a batch that grows by step,
// or gradient accumulation by epoch or step. Numbers in, numbers out; whoever reads settings checks
// them first.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace mtl {

// Forwards of all stages in one step: beyond this, planning them would take longer than training.
inline constexpr int64_t kMostForwards = 1 << 20;

// Where a run stands that goes on: what the steps before `step` have consumed, whatever their
// batches were.
struct Consumed {
  int64_t step = 0, samples = 0;
  bool operator==(const Consumed&) const = default;
};

struct BatchPhase {
  int64_t first_step = 0;     // the phase begins here
  int64_t first_sample = 0;   // sequences consumed by the steps before
  int64_t global_batch = 0;   // sequences per step
  int64_t micro_batches = 0;  // per rank and step = global_batch / (micro_batch * dp)
  bool operator==(const BatchPhase&) const = default;
};

class BatchSchedule {
 public:
  // Phases ascend and the first begins with step 0; at least one when used. Of a run that goes on
  // behind steps of other batches the first phase is as if it had been there from step 0 on: what
  // it says is true from the step on that the run goes on with. `largest_before`: sequences of the
  // largest step that lies behind.
  explicit BatchSchedule(std::vector<BatchPhase> phases = {}, int64_t largest_before = 0);
  const BatchPhase& at(int64_t step) const;
  // Sequences consumed by steps [0, step).
  int64_t first_sample(int64_t step) const;
  // The smallest number of steps that consumes at least `samples`.
  int64_t steps_for_samples(int64_t samples) const;
  // Sequences of the step that has most, those that lie behind a run that goes on included: what is
  // compared over the run follows it.
  int64_t largest() const;
  const std::vector<BatchPhase>& phases() const { return phases_; }

  // Without the phases that begin with step `steps` or later; the first one stays.
  BatchSchedule until(int64_t steps) const;
  // The same steps behind those that have consumed so much.
  BatchSchedule behind(const Consumed& consumed) const;

 private:
  std::vector<BatchPhase> phases_;
  int64_t largest_before_ = 0;
};

// {from step: global batch}, each a multiple of micro_batch * dp; there is one for step 0.
BatchSchedule ramp_by_step(const std::map<int64_t, int64_t>& global_batches, int64_t micro_batch,
                           int dp);

// {from epoch: micro-batches per step}, Lightning's GradientAccumulationScheduler; as there, epochs
// before the first entry have 1. An epoch is `samples_per_epoch` sequences, and a phase begins with
// the first step that starts at or after its epoch's first sample: a step may straddle the border,
// and is then of the phase before. A phase that would be over before any of its steps starts is
// left out. A run that goes on counts the epochs of the sequences that it has consumed.
BatchSchedule accumulate_by_epoch(const std::map<int64_t, int64_t>& accumulate, int64_t micro_batch,
                                  int dp, int64_t samples_per_epoch, const Consumed& consumed = {});

// {from step: micro-batches per step}; steps before the first entry have 1.
BatchSchedule accumulate_by_step(const std::map<int64_t, int64_t>& accumulate, int64_t micro_batch,
                                 int dp);

}  // namespace mtl
