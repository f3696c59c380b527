// Which algorithm bench/products_gpu takes, on a GPU of known powers: with a limit that holds its
// clock, warming up, and noise.
#include "bench/gpu/product_trials.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include <doctest/doctest.h>

using namespace mtl::bench;

namespace {

constexpr double kLimitW = 700;

struct KnownAlgorithm {
  double seconds;  // at the full clock
  double watts;    // that it draws then
};

// Under load a product takes its energy's time, where that is longer.
struct LimitedGpu {
  std::vector<KnownAlgorithm> algorithms;
  double noise = 0.003;  // standard deviation of a slot, of it
  double drift = 0;      // so much longer every slot
  uint64_t seed = 1;
  std::mt19937_64 random{seed};
  int slots = 0;

  double slot(size_t i) {
    const KnownAlgorithm& a = algorithms[i];
    std::normal_distribution<double> spread(1, noise);
    return a.seconds * std::max(1.0, a.watts / kLimitW) * (1 + drift * slots++) *
           (noise > 0 ? spread(random) : 1);
  }
  UnderLoad measured(int rounds) {
    return under_load(algorithms.size(), rounds, [this](size_t i) { return slot(i); });
  }
};

}  // namespace

TEST_CASE("product trials: under load the one with less energy is chosen, not the fastest alone") {
  // The fastest alone would take 2 % longer in a step than the first, the third 5 % less.
  LimitedGpu gpu{.algorithms = {{1.00e-3, 760}, {0.96e-3, 808}, {1.02e-3, 708}, {1.01e-3, 770}}};
  const UnderLoad found = gpu.measured(5);
  CHECK(chosen_of(found, 4) == 2);
  CHECK(found.ratios[1] == doctest::Approx(0.96 * 808 / 760).epsilon(0.01));
  CHECK(found.seconds[0] == doctest::Approx(1e-3 * 760 / kLimitW).epsilon(0.01));
  // Of the others the fastest, and which it is among some.
  CHECK(fastest_of(found, 1, 2) == 1);
  CHECK(fastest_of(found, 0, 4) == 2);
  CHECK(chosen_of(found, 2) == 0);
}

TEST_CASE("product trials: what is not faster than the noise is not chosen") {
  const std::vector<KnownAlgorithm> alike(8, {1e-3, 750});
  int wrong = 0, found = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    for (const double noise : {0.001, 0.01}) {
      LimitedGpu same{.algorithms = alike, .noise = noise, .seed = seed};
      wrong += chosen_of(same.measured(5), 8) != 0 ? 1 : 0;
      LimitedGpu better{.algorithms = alike, .noise = noise, .seed = seed};
      better.algorithms[5].seconds *= 0.93;
      found += chosen_of(better.measured(5), 8) == 5 ? 1 : 0;
    }
  }
  CHECK(wrong <= 45);
  CHECK(found >= 540);
  // Less than half a percent is not worth other bits, however sure it is.
  LimitedGpu little{.algorithms = {{1e-3, 750}, {0.996e-3, 750}, {0.994e-3, 750}}, .noise = 0};
  CHECK(chosen_of(little.measured(5), 2) == 0);
  CHECK(chosen_of(little.measured(5), 3) == 2);
}

TEST_CASE("product trials: a GPU that warms up favours none") {
  // Each slot 0.2 % longer than the one before: by the first one's time alone, whatever comes next
  // to it would look slower, and what comes last by far.
  for (const int rounds : {4, 5}) {
    LimitedGpu gpu{
        .algorithms = std::vector<KnownAlgorithm>(6, {1e-3, 750}), .noise = 0, .drift = 0.002};
    gpu.algorithms[5].seconds *= 0.97;
    const UnderLoad found = gpu.measured(rounds);
    for (size_t i = 0; i < 5; ++i) CHECK(found.ratios[i] == doctest::Approx(1).epsilon(1e-4));
    CHECK(found.ratios[5] == doctest::Approx(0.97).epsilon(1e-4));
    // And cooling down.
    gpu.drift = -0.001;
    CHECK(gpu.measured(rounds).ratios[4] == doctest::Approx(1).epsilon(1e-4));
  }
}

TEST_CASE("product trials: the first, and the fastest alone, are tried under load") {
  using Places = std::vector<size_t>;
  const std::vector<double> alone = {1.3, 1.02, 1.0, 1.14, 1.2, 1.02, 1.1};
  CHECK(tried_of(alone, 8) == Places{0, 2, 1, 5, 6, 3});
  CHECK(tried_of(alone, 3) == Places{0, 2, 1});
  CHECK(tried_of(alone, 1) == Places{0});
  CHECK(tried_of(alone, 0).empty());
  CHECK(tried_of({1.0}, 8) == Places{0});
  CHECK(tried_of({1.0, 2.0, 1.1}, 8) == Places{0, 2});
  CHECK(tried_of({}, 8).empty());
}

TEST_CASE("product trials: they keep to their time") {
  for (const double call : {2e-5, 1e-3, 2.2e-2, 0.5}) {
    for (const size_t candidates : {size_t{1}, size_t{2}, size_t{5}, size_t{40}}) {
      for (const double seconds : {0.0, 0.5, 1.0, 2.0, 4.0, 9.0, 60.0}) {
        CAPTURE(call);
        CAPTURE(candidates);
        CAPTURE(seconds);
        const LoadPlan plan = load_plan(seconds, candidates, call, 0.07);
        if (plan.rounds == 0) {
          CHECK((candidates < 2 || seconds < 6 * call * 10 + 0.07 * 1.7 * 10));
          continue;
        }
        CHECK(plan.seconds() <= seconds);
        CHECK(plan.slot_s >= std::max(0.07, 3 * call));
        CHECK(plan.rounds >= 3);
        CHECK(plan.candidates >= 2);
        CHECK(plan.candidates <= std::min(candidates, size_t{8}));
        LimitedGpu gpu{.algorithms = std::vector<KnownAlgorithm>(plan.candidates, {call, 600})};
        gpu.measured(plan.rounds);
        CHECK((gpu.slots + 1) * plan.slot_s * LoadPlan::kSlotCost ==
              doctest::Approx(plan.seconds()));
      }
    }
  }
  // With time enough all of them, and more rounds.
  CHECK(load_plan(60, 5, 1e-3, 0.07).candidates == 5);
  CHECK(load_plan(60, 5, 1e-3, 0.07).rounds == 7);
  // Where there is less, both by turns: of 31, 21 and 10 slots.
  CHECK(load_plan(3.7, 8, 1e-3, 0.07).candidates == 6);
  CHECK(load_plan(3.7, 8, 1e-3, 0.07).rounds == 4);
  CHECK(load_plan(2.6, 8, 1e-3, 0.07).candidates == 4);
  CHECK(load_plan(2.6, 8, 1e-3, 0.07).rounds == 4);
  CHECK(load_plan(1.2, 8, 1e-3, 0.07).candidates == 2);
  CHECK(load_plan(1.2, 8, 1e-3, 0.07).rounds == 3);
  CHECK(load_plan(1.1, 8, 1e-3, 0.07).rounds == 0);
}
