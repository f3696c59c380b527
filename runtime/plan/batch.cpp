#include "runtime/plan/batch.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <limits>
#include <utility>

namespace mtl {

namespace {

// The last of `phases` for which `begin` is not after `at`.
const BatchPhase& phase_of(const std::vector<BatchPhase>& phases, int64_t BatchPhase::*begin,
                           int64_t at) {
  assert(!phases.empty() && at >= 0);
  const auto after = std::upper_bound(
      phases.begin(), phases.end(), at,
      [&](int64_t value, const BatchPhase& phase) { return value < phase.*begin; });
  return *std::prev(after);
}

// Appends a phase that begins with `step`, unless no run gets that far: 2^63 sequences.
void append(std::vector<BatchPhase>& phases, int64_t step, int64_t global_batch,
            int64_t micro_batches) {
  int64_t sample = 0;
  if (!phases.empty()) {
    const BatchPhase& before = phases.back();
    if (__builtin_mul_overflow(step - before.first_step, before.global_batch, &sample) ||
        __builtin_add_overflow(sample, before.first_sample, &sample)) {
      return;
    }
    // A phase without a step.
    if (step == before.first_step) phases.pop_back();
  }
  phases.push_back({step, sample, global_batch, micro_batches});
}

int64_t divide_up(int64_t a, int64_t b) {
  return a / b + (a % b != 0);
}

}  // namespace

BatchSchedule::BatchSchedule(std::vector<BatchPhase> phases, int64_t largest_before)
    : phases_(std::move(phases)), largest_before_(largest_before) {
  assert(phases_.empty() || phases_[0].first_step == 0);
}

const BatchPhase& BatchSchedule::at(int64_t step) const {
  return phase_of(phases_, &BatchPhase::first_step, step);
}

int64_t BatchSchedule::first_sample(int64_t step) const {
  const BatchPhase& phase = at(step);
  return phase.first_sample + (step - phase.first_step) * phase.global_batch;
}

int64_t BatchSchedule::steps_for_samples(int64_t samples) const {
  if (samples <= phases_.front().first_sample) return 0;
  const BatchPhase& phase = phase_of(phases_, &BatchPhase::first_sample, samples);
  return phase.first_step + divide_up(samples - phase.first_sample, phase.global_batch);
}

int64_t BatchSchedule::largest() const {
  int64_t most = largest_before_;
  for (const BatchPhase& phase : phases_) most = std::max(most, phase.global_batch);
  return most;
}

BatchSchedule BatchSchedule::until(int64_t steps) const {
  BatchSchedule shorter = *this;
  std::erase_if(shorter.phases_, [&](const BatchPhase& phase) {
    return phase.first_step > 0 && phase.first_step >= steps;
  });
  return shorter;
}

BatchSchedule BatchSchedule::behind(const Consumed& consumed) const {
  BatchSchedule moved = *this;
  const int64_t ahead = consumed.samples - first_sample(consumed.step);
  for (BatchPhase& phase : moved.phases_) phase.first_sample += ahead;
  return moved;
}

BatchSchedule ramp_by_step(const std::map<int64_t, int64_t>& global_batches, int64_t micro_batch,
                           int dp) {
  assert(global_batches.contains(0));
  std::vector<BatchPhase> phases;
  for (const auto& [step, global_batch] : global_batches) {
    assert(global_batch > 0 && global_batch % (micro_batch * dp) == 0);
    append(phases, step, global_batch, global_batch / (micro_batch * dp));
  }
  return BatchSchedule(std::move(phases));
}

BatchSchedule accumulate_by_epoch(const std::map<int64_t, int64_t>& accumulate, int64_t micro_batch,
                                  int dp, int64_t samples_per_epoch, const Consumed& consumed) {
  assert(samples_per_epoch > 0);
  // The epoch that the run is in.
  auto next = accumulate.upper_bound(consumed.samples / samples_per_epoch);
  const int64_t now = next == accumulate.begin() ? 1 : std::prev(next)->second;
  std::vector<BatchPhase> phases;
  append(phases, 0, micro_batch * dp * now, now);
  phases.front().first_sample = consumed.samples - consumed.step * micro_batch * dp * now;
  int64_t most_before = now;
  for (auto before = accumulate.begin(); before != next; ++before) {
    most_before = std::max(most_before, before->second);
  }
  for (; next != accumulate.end(); ++next) {
    const auto& [epoch, micro_batches] = *next;
    if (epoch > std::numeric_limits<int64_t>::max() / samples_per_epoch) break;
    // An epoch may begin within a step, whose phase is the last so far.
    const BatchPhase& before = phases.back();
    const int64_t missing = epoch * samples_per_epoch - before.first_sample;
    const int64_t steps = missing > 0 ? divide_up(missing, before.global_batch) : 0;
    append(phases, before.first_step + steps, micro_batch * dp * micro_batches, micro_batches);
  }
  return BatchSchedule(std::move(phases), micro_batch * dp * most_before);
}

BatchSchedule accumulate_by_step(const std::map<int64_t, int64_t>& accumulate, int64_t micro_batch,
                                 int dp) {
  std::vector<BatchPhase> phases;
  append(phases, 0, micro_batch * dp, 1);
  for (const auto& [step, micro_batches] : accumulate) {
    append(phases, step, micro_batch * dp * micro_batches, micro_batches);
  }
  return BatchSchedule(std::move(phases));
}

}  // namespace mtl
