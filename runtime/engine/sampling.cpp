#include "runtime/engine/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <Random123/philox.h>

#include "common/error.h"

namespace mtl {

namespace {

// A comparison with NaN has no order, and infinite scores no probabilities.
void require_finite(std::span<const float> logits) {
  const bool any_nan =
      std::any_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); });
  if (!any_nan && std::isfinite(*std::max_element(logits.begin(), logits.end()))) return;
  throw Error(Exit::run_failed,
              {.code = "generate.numbers",
               .what = "the model's scores for the next token are not finite (NaN or infinite)",
               .help = "its weights are damaged or its training has diverged: take an earlier "
                       "checkpoint"});
}

// In (0, 1), counter-based: the same (seed, index) gives the same number.
double uniform(uint64_t seed, int64_t index) {
  const auto words =
      r123::Philox4x32()({{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0}},
                         {{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}});
  return (words[0] + 0.5) * 0x1p-32;
}

}  // namespace

int32_t sample_token(std::span<const float> logits, const Sampling& sampling, int64_t index) {
  require_finite(logits);
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  // Ties go to the smaller id, so that the order is the same everywhere.
  const auto larger = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (sampling.temperature <= 0) return *std::min_element(ids.begin(), ids.end(), larger);
  if (sampling.top_k > 0) {
    const auto kept = std::min<size_t>(static_cast<size_t>(sampling.top_k), ids.size());
    std::partial_sort(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(kept), ids.end(), larger);
    ids.resize(kept);
  } else {
    std::sort(ids.begin(), ids.end(), larger);
  }
  const double top = logits[static_cast<size_t>(ids.front())];
  std::vector<double> cumulative;
  double total = 0;
  for (const int32_t id : ids) {
    total += std::exp((logits[static_cast<size_t>(id)] - top) / sampling.temperature);
    cumulative.push_back(total);
  }
  if (sampling.top_p < 1) {
    const auto last =
        std::lower_bound(cumulative.begin(), cumulative.end() - 1, sampling.top_p * total);
    cumulative.erase(last + 1, cumulative.end());
  }
  const double target = uniform(sampling.seed, index) * cumulative.back();
  const auto at = std::upper_bound(cumulative.begin(), cumulative.end() - 1, target);
  return ids[static_cast<size_t>(at - cumulative.begin())];
}

}  // namespace mtl
