#include "runtime/engine/spikes.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace mtl {

std::optional<SpikeWatch::Spike> SpikeWatch::next(double value) {
  if (!std::isfinite(value)) return std::nullopt;
  // A number that hardly moves at all has no usual distance to speak of.
  const double usual = std::max(distance_, 1e-3 * std::abs(mean_));
  if (seen_ >= kFirst && value - mean_ > factor_ * usual && ++in_row_ <= kMostInRow) {
    return Spike{mean_, usual};
  }
  if (in_row_ > kMostInRow) seen_ = 0;  // what has been tells nothing of what is
  in_row_ = 0;
  ++seen_;
  // Plain means at first, so that the first value does not count for a hundred.
  const double weight = std::max(1.0 / seen_, 0.01);
  distance_ += weight * (std::abs(value - mean_) - distance_);
  if (seen_ == 1) distance_ = 0;  // there was no mean yet
  mean_ += weight * (value - mean_);
  return std::nullopt;
}

std::optional<Diagnostic> StepSpikes::news(int64_t step, double loss, double grad_norm) {
  if (factor_ == 0) return std::nullopt;
  std::vector<std::string> what;
  const auto look = [&](SpikeWatch& watch, const char* name, double value) {
    const std::optional<SpikeWatch::Spike> spike = watch.next(value);
    if (!spike) return;
    what.push_back(fmt::format("{} {:.4g} where {:.4g} +- {:.2g} was usual", name, value,
                               spike->mean, spike->distance));
  };
  look(loss_, "loss", loss);
  look(grad_norm_, "gradient norm", grad_norm);
  if (what.empty()) return std::nullopt;
  const bool goes_on = last_ >= 0 && step == last_ + 1;
  last_ = step;
  if (goes_on) return std::nullopt;
  return Diagnostic{
      .code = "loss.spike",
      .what = fmt::format("step {}: {}", step, fmt::join(what, ", ")),
      .help =
          "look at the text of this step (mtl data preview) and at the next losses; if they "
          "stay high, go on from a checkpoint before it with a lower lr.max or a smaller "
          "optimizer.clip",
      .severity = Diagnostic::Severity::warning};
}

}  // namespace mtl
