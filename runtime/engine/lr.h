// The learning rate of a step, and nothing else.
#pragma once

#include "runtime/spec/train_spec.h"

namespace mtl {

// `step` counts from 0. Linear warm-up: max * (step + 1) / warmup for step < warmup, so that the
// first step already learns. Then, with r = (step - warmup) / (decay - warmup) clamped to 1: cosine
// = min + (max - min) * (1 + cos(pi r)) / 2; constant = max.
double learning_rate(const TrainSpec& spec, int64_t step);

}  // namespace mtl
