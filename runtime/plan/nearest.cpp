#include "runtime/plan/nearest.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace mtl {

std::string nearest_divisors(int64_t n, int64_t value) {
  int64_t below = std::clamp<int64_t>(value, 1, std::max<int64_t>(1, n)), above = value;
  while (below > 1 && n % below != 0) --below;
  while (above < n && n % above != 0) ++above;
  if (above > n || n % above != 0 || above == below) return std::to_string(below);
  return fmt::format("{} or {}", below, above);
}

std::string nearest_multiples(int64_t value, int64_t n) {
  const int64_t below = value / n * n, above = below + n;
  return below == 0 ? std::to_string(above) : fmt::format("{} or {}", below, above);
}

std::vector<std::string> nearest_layouts(const ModelShape& model, const WantedLayout& wanted) {
  struct Candidate {
    double distance;
    int tp, pp, dp;
  };
  std::vector<Candidate> candidates;
  auto ratio = [](int a, int b) { return std::abs(std::log2(static_cast<double>(a) / b)); };
  for (int tp = 1; tp <= wanted.world; ++tp) {
    const bool kv = model.kv_heads % tp == 0 || tp % std::max<int64_t>(1, model.kv_heads) == 0;
    if (wanted.world % tp != 0 || model.heads % tp != 0 || model.ffn % tp != 0 || !kv) continue;
    for (int pp = 1; pp <= wanted.world / tp; ++pp) {
      const int chunks = pp > 1 ? wanted.chunks : 1;
      if (wanted.world / tp % pp != 0 || model.layers % (static_cast<int64_t>(pp) * chunks) != 0) {
        continue;
      }
      candidates.push_back(
          {ratio(tp, wanted.tp) + ratio(pp, wanted.pp), tp, pp, wanted.world / (tp * pp)});
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.distance < b.distance; });
  std::vector<std::string> texts;
  for (size_t i = 0; i < std::min<size_t>(3, candidates.size()); ++i) {
    const Candidate& c = candidates[i];
    texts.push_back(fmt::format("tp={} pp={} dp={}", c.tp, c.pp, c.dp));
  }
  return texts;
}

}  // namespace mtl
