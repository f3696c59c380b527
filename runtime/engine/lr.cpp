#include "runtime/engine/lr.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace mtl {

double learning_rate(const TrainSpec& spec, int64_t step) {
  const TrainSpec::Lr& lr = spec.lr;
  if (step < lr.warmup) {
    return lr.max * static_cast<double>(step + 1) / static_cast<double>(lr.warmup);
  }
  if (lr.schedule == "constant") return lr.max;
  const int64_t decay = lr.decay > 0 ? lr.decay : spec.train.steps;
  const double progress =
      std::min(1.0, static_cast<double>(step - lr.warmup) / static_cast<double>(decay - lr.warmup));
  return lr.min + (lr.max - lr.min) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace mtl
