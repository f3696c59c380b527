#include "runtime/checkpoint/keep_rules.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace mtl {

namespace {

// Places in `steps` of those with a metric, the best first.
std::vector<size_t> by_metric(const KeepRules& rules, const std::vector<SavedStep>& steps) {
  std::vector<size_t> places;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].metric && std::isfinite(*steps[i].metric)) places.push_back(i);
  }
  std::sort(places.begin(), places.end(), [&](size_t a, size_t b) {
    const double x = *steps[a].metric, y = *steps[b].metric;
    if (x != y) return rules.lowest ? x < y : x > y;
    return steps[a].step > steps[b].step;
  });
  return places;
}

}  // namespace

std::vector<Kept> judge(const KeepRules& rules, const std::vector<SavedStep>& steps,
                        std::optional<int64_t> fresh) {
  std::vector<Kept> kept;
  for (const SavedStep& saved : steps) kept.push_back({.step = saved.step});
  std::vector<size_t> newest(steps.size());
  std::iota(newest.begin(), newest.end(), size_t{0});
  std::sort(newest.begin(), newest.end(), [&](size_t a, size_t b) {
    if (steps[a].step == fresh || steps[b].step == fresh) return steps[a].step == fresh;
    return steps[a].step > steps[b].step;
  });
  for (size_t i = 0; i < newest.size(); ++i) {
    const bool is_fresh = steps[newest[i]].step == fresh;
    kept[newest[i]].last = rules.last <= 0 || is_fresh || static_cast<int64_t>(i) < rules.last;
  }
  for (Kept& one : kept) one.every = rules.every > 0 && one.step % rules.every == 0;
  const std::vector<size_t> best = by_metric(rules, steps);
  for (size_t i = 0; i < best.size() && static_cast<int64_t>(i) < rules.best; ++i) {
    kept[best[i]].best = true;
  }
  return kept;
}

std::optional<int64_t> best_step(const KeepRules& rules, const std::vector<SavedStep>& steps) {
  const std::vector<size_t> best = by_metric(rules, steps);
  return best.empty() ? std::nullopt : std::optional(steps[best.front()].step);
}

}  // namespace mtl
