#include "runtime/engine/lr.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace mtl {

namespace {

// The part of the way from `begin` to `end` that lies behind, 0 to 1.
double part(int64_t begin, int64_t end, int64_t step) {
  if (step >= end) return 1.0;
  if (step <= begin) return 0.0;
  return static_cast<double>(step - begin) / static_cast<double>(end - begin);
}

// From 1 to 0 as r goes from 0 to 1.
double half_cosine(double r) {
  return 0.5 * (1 + std::cos(std::numbers::pi * r));
}

double wsd_fall(const std::string& style, double q) {
  if (style == "exponential") return 2 * std::pow(0.5, q) - 1;
  if (style == "linear") return 1 - q;
  if (style == "minus_sqrt") return 1 - std::sqrt(q);
  return half_cosine(q);
}

}  // namespace

double learning_rate(const TrainSpec& spec, int64_t steps, int64_t step) {
  const TrainSpec::Lr& lr = spec.lr;
  if (step < lr.warmup) {
    return lr.max * static_cast<double>(step + 1) / static_cast<double>(lr.warmup);
  }
  const auto between = [&](double share) { return lr.min + (lr.max - lr.min) * share; };
  const int64_t decay = lr.decay > 0 ? lr.decay : steps;
  if (lr.schedule == "constant") return lr.max;
  if (lr.schedule == "linear") return between(1 - part(lr.warmup, decay, step));
  if (lr.schedule == "inverse_sqrt") {
    const auto w = static_cast<double>(std::max<int64_t>(lr.warmup, 1));
    const auto n = static_cast<double>(std::max<int64_t>(step, 1));
    return std::max(lr.min, lr.max * std::sqrt(w / n));
  }
  if (lr.schedule == "wsd") {
    const int64_t fall = lr.wsd_decay > 0 ? lr.wsd_decay : std::max<int64_t>(decay / 10, 1);
    const int64_t begin = std::max(lr.warmup, decay - fall);
    return between(wsd_fall(lr.wsd_style, part(begin, decay, step)));
  }
  return between(half_cosine(part(lr.warmup, decay, step)));
}

double weight_decay(const TrainSpec& spec, int64_t steps, int64_t step) {
  const TrainSpec::Optimizer& optimizer = spec.optimizer;
  const double begin = optimizer.weight_decay;
  const double way = optimizer.weight_decay_end - begin;
  if (optimizer.weight_decay_ramp == "linear") return begin + way * part(0, steps, step);
  if (optimizer.weight_decay_ramp == "cosine") {
    return begin + way * (1 - half_cosine(part(0, steps, step)));
  }
  return begin;
}

}  // namespace mtl
