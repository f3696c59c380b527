// Steps that stand out: a loss or a gradient norm far above what it has been of late. A run that is
// about to diverge, a shard of broken text or a flipped bit shows there first.
//
// "Of late" are exponentially weighted means over about the last 100 steps, of the number and of
// how far it lies from its mean. What falls is no spike, however fast; so the first steps of a run,
// when the loss does, are no cause for one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/error.h"

namespace mtl {

// One number, step by step.
class SpikeWatch {
 public:
  // `factor`: of the usual distance from the mean.
  explicit SpikeWatch(double factor) : factor_(factor) {}

  struct Spike {
    double mean;      // of late
    double distance;  // of late, the mean of |value - mean|
  };
  // The spike that `value` is; it counts in no mean then, unless they go on for so long that they
  // are what is usual. Numbers that are not finite are somebody else's concern.
  std::optional<Spike> next(double value);

 private:
  static constexpr int kFirst = 50;      // steps before anything is unusual
  static constexpr int kMostInRow = 20;  // spikes in a row, then this is how it is

  const double factor_;
  double mean_ = 0, distance_ = 0;
  int seen_ = 0, in_row_ = 0;
};

// Both numbers of a step, as what is said of them.
class StepSpikes {
 public:
  // `factor` (health.spike_factor): 0 = nothing is looked for.
  explicit StepSpikes(double factor) : factor_(factor), loss_(factor), grad_norm_(factor) {}

  // Code loss.spike. Of a row of spikes the first one is told.
  std::optional<Diagnostic> news(int64_t step, double loss, double grad_norm);

 private:
  const double factor_;
  SpikeWatch loss_, grad_norm_;
  int64_t last_ = -1;  // step with a spike
};

}  // namespace mtl
