// The learning rate and the weight decay of a step, and nothing else. The formulas are those of
// Megatron-LM's OptimizerParamScheduler, but for the warm-up (there the first step has rate 0).
#pragma once

#include <cstdint>

#include "runtime/spec/train_spec.h"

namespace mtl {

// `step` counts the updates of the optimizer from 0 (a skipped step does not count), of `steps` in
// the whole run.
//
// Warm-up, for step < w = lr.warmup: max * (step + 1) / w, so that the first step already learns.
// Then, with D = lr.decay or else `steps`, and r = (step - w) / (D - w), at most 1:
//   cosine        min + (max - min) * (1 + cos(pi r)) / 2
//   linear        min + (max - min) * (1 - r)
//   constant      max
//   inverse_sqrt  max * sqrt(w / step), at least min; w and step count as 1 when they are 0. It has
//                 no end, so D does not matter.
//   wsd           max until S = D - lr.wsd_decay (auto: D / 10, at least 1), S not before w; then
//                 min + (max - min) * c(q) with q = (step - S) / (D - S), at most 1, and c by
//                 lr.wsd_style: exponential 2 * 0.5^q - 1, linear 1 - q, cosine (1 + cos(pi q)) /
//                 2, minus_sqrt 1 - sqrt(q)
// Where there is nothing between w and D, r is 1.
double learning_rate(const TrainSpec& spec, int64_t steps, int64_t step);

// With a = optimizer.weight_decay, b = optimizer.weight_decay_end and r = step / steps, at most 1:
// constant a; linear a + (b - a) r; cosine a + (b - a) (1 - cos(pi r)) / 2.
double weight_decay(const TrainSpec& spec, int64_t steps, int64_t step);

}  // namespace mtl
