#include "runtime/plan/rules/nearest.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace mtl {

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> small, large;
  for (int64_t d = 1; d <= n / d; ++d) {
    if (n % d != 0) continue;
    small.push_back(d);
    if (d != n / d) large.push_back(n / d);
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  return small;
}

std::string nearest_of(const std::vector<int64_t>& possible, int64_t value) {
  const auto above = std::lower_bound(possible.begin(), possible.end(), value);
  if (above == possible.end()) return std::to_string(possible.back());
  if (above == possible.begin() || *above == value) return std::to_string(*above);
  return fmt::format("{} or {}", *std::prev(above), *above);
}

std::string nearest_divisors(int64_t n, int64_t value) {
  return nearest_of(divisors(n), value);
}

std::string nearest_multiples(int64_t value, int64_t n) {
  const int64_t below = value / n * n, above = below + n;
  return below == 0 ? std::to_string(above) : fmt::format("{} or {}", below, above);
}

std::vector<int64_t> tensor_degrees(const ModelShape& model) {
  std::vector<int64_t> degrees = divisors(std::max<int64_t>(1, model.heads));
  std::erase_if(degrees, [&](int64_t tp) {
    const bool kv_heads =
        model.kv_heads == 0 || model.kv_heads % tp == 0 || tp % model.kv_heads == 0;
    return !kv_heads || model.ffn % tp != 0 || model.shared_ffn % tp != 0 ||
           model.dense_layer_ffn % tp != 0;
  });
  return degrees;
}

bool heads_divide(const ModelShape& model, int64_t tp, int64_t cp) {
  const int64_t kv_heads = std::max<int64_t>(1, model.kv_heads / tp);
  return model.heads % (tp * cp) == 0 && (kv_heads % cp == 0 || cp % kv_heads == 0);
}

std::vector<Degrees> nearest_layouts(const ModelShape& model, int world, const Degrees& wanted,
                                     const std::function<bool(const Degrees&)>& fits) {
  struct Candidate {
    double distance;
    Degrees degrees;
  };
  std::vector<Candidate> candidates;
  const auto factor = [](int a, int b) { return std::abs(std::log2(static_cast<double>(a) / b)); };
  for (const int64_t tp64 : tensor_degrees(model)) {
    if (tp64 > world || world % tp64 != 0) continue;
    const int tp = static_cast<int>(tp64), ranks = world / tp;
    for (int pp = 1; pp <= std::min<int64_t>(ranks, model.layers); ++pp) {
      if (ranks % pp != 0) continue;
      const double distance = factor(tp, wanted.tp) + factor(pp, wanted.pp);
      const Degrees degrees{.tp = tp, .pp = pp, .dp = ranks / pp, .chunks = wanted.chunks};
      candidates.push_back({distance, degrees});
      if (wanted.chunks == 1) continue;
      candidates.push_back({distance + 0.5, degrees});
      candidates.back().degrees.chunks = 1;
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.distance < b.distance; });
  std::vector<Degrees> nearest;
  for (const Candidate& candidate : candidates) {
    if (nearest.size() < 3 && fits(candidate.degrees)) nearest.push_back(candidate.degrees);
  }
  return nearest;
}

}  // namespace mtl
