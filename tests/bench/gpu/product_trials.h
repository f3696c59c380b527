// Which of a product's algorithms is the fastest where a step has it. Alone, in a short burst, a
// GPU's clock is as high as it gets; one product behind the other they draw all the power that the
// GPU may, its clock falls, and the algorithm that needs less energy is the faster one. So those
// that are fast alone are tried again under load: each for a slot of a tenth of a second and more,
// which the power's control sees, in rounds, the first algorithm at both ends of each.
//
// Who multiplies is a function, so that tests have a GPU of known powers, drift and noise.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "bench/median.h"

namespace mtl::bench {

// Below it one is as good as the other, and cuBLASLt's first stays.
inline constexpr double kLeastGain = 0.005;
// So many times the noise a gain has to be: of the errors of a median, three.
inline constexpr double kNoises = 4;
// Slower than the fastest by more than that alone, one is not tried under load. (On an H200 a
// step's products took up to 14 % longer than alone.)
inline constexpr double kTriedWithin = 0.15;

// How a product's time under load is spent.
struct LoadPlan {
  int rounds = 0;         // 0: it is too short for anything
  size_t candidates = 0;  // at most
  double slot_s = 0;      // that each is timed for
  // With what comes before the timed part (loaded_gpu.h), and the clock that falls.
  static constexpr double kSlotCost = 1.7;
  double seconds() const {
    // The first algorithm twice a round; and what runs between, by itself.
    return kSlotCost * slot_s * (rounds * static_cast<double>(candidates + 1) + 1);
  }
};
// call_s: of the product's first algorithm, alone.
inline LoadPlan load_plan(double seconds, size_t candidates, double call_s, double least_slot_s) {
  constexpr size_t kMost = 8;
  LoadPlan plan = {.rounds = 7,
                   .candidates = std::min(candidates, kMost),
                   .slot_s = std::max(least_slot_s, 3 * call_s)};
  // Candidates, and what is known of each, in turns.
  const auto too_long = [&] { return plan.seconds() > seconds; };
  while (too_long() && plan.candidates > 6) --plan.candidates;
  while (too_long() && plan.rounds > 4) --plan.rounds;
  while (too_long() && plan.candidates > 4) --plan.candidates;
  while (too_long() && plan.rounds > 3) --plan.rounds;
  while (too_long() && plan.candidates > 2) --plan.candidates;
  if (plan.candidates < 2 || too_long()) return {};
  return plan;
}

// Places in `alone` (seconds of a call) that are tried under load: the first, then the fastest.
inline std::vector<size_t> tried_of(const std::vector<double>& alone, size_t most) {
  std::vector<size_t> order;
  for (size_t i = 1; i < alone.size(); ++i) order.push_back(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return alone[a] < alone[b]; });
  std::vector<size_t> tried;
  if (!alone.empty() && most > 0) tried.push_back(0);
  for (const size_t i : order) {
    const double fastest = std::min(alone[0], alone[order.front()]);
    if (tried.size() < most && alone[i] <= (1 + kTriedWithin) * fastest) tried.push_back(i);
  }
  return tried;
}

struct UnderLoad {
  std::vector<double> seconds;  // of a call of each, the median of the rounds
  std::vector<double> ratios;   // to the first one's in the same round, the median
  double noise = 0;             // of the first one's
};
// slot(candidate): seconds of a call of it under load.
inline UnderLoad under_load(size_t candidates, int rounds,
                            const std::function<double(size_t)>& slot) {
  std::vector<std::vector<double>> seconds(candidates), ratios(candidates);
  std::vector<double> apart;
  for (int round = 0; round < rounds; ++round) {
    std::vector<double> times(candidates);
    for (size_t i = 0; i < candidates; ++i) times[i] = slot(i);
    const double begin = times[0], end = slot(0);
    times[0] = (begin + end) / 2;
    apart.push_back(std::abs(end - begin) / (end + begin));
    for (size_t i = 0; i < candidates; ++i) {
      // The GPU warms up, or cools down: the first one's time then is between its two.
      const double way = static_cast<double>(i) / static_cast<double>(candidates);
      seconds[i].push_back(times[i]);
      ratios[i].push_back(i == 0 ? 1 : times[i] / (begin + (end - begin) * way));
    }
  }
  UnderLoad found;
  for (size_t i = 0; i < candidates; ++i) {
    found.seconds.push_back(median_of(seconds[i]));
    found.ratios.push_back(median_of(ratios[i]));
  }
  found.noise = median_of(apart);
  return found;
}

// By how much a time has to be shorter to be taken for it.
inline double needed_gain(const UnderLoad& found) {
  return std::max(kLeastGain, kNoises * found.noise);
}

// Of the candidates from `begin` to `end` the fastest.
inline size_t fastest_of(const UnderLoad& found, size_t begin, size_t end) {
  const auto first = found.ratios.begin() + static_cast<std::ptrdiff_t>(begin);
  const auto last = found.ratios.begin() + static_cast<std::ptrdiff_t>(end);
  return begin + static_cast<size_t>(std::min_element(first, last) - first);
}

// Of the first `count`: the fastest, if that is sure, else the first.
inline size_t chosen_of(const UnderLoad& found, size_t count) {
  const size_t fastest = fastest_of(found, 0, count);
  return found.ratios[fastest] < 1 - needed_gain(found) ? fastest : 0;
}

}  // namespace mtl::bench
