// Which steps stand out, and which do not.
#include "runtime/engine/spikes.h"

#include <cmath>
#include <random>

#include <doctest/doctest.h>

using namespace mtl;

namespace spikes_test {

namespace {

constexpr double kFactor = 10;

}  // namespace

TEST_CASE("a loss that falls and then only varies is no spike, a rise is one") {
  std::mt19937 random(1);
  std::normal_distribution<double> noise(0, 0.05);
  SpikeWatch watch(kFactor);
  for (int step = 0; step < 2000; ++step) {
    const double loss = 2.5 + 8.5 * std::exp(-step / 60.0) + noise(random);
    CAPTURE(step);
    CHECK_FALSE(watch.next(loss));
  }
  const auto spike = watch.next(3.4);
  REQUIRE(spike);
  CHECK(spike->mean == doctest::Approx(2.5).epsilon(0.02));
  CHECK(spike->distance == doctest::Approx(0.04).epsilon(0.3));  // sqrt(2 / pi) of the deviation
  CHECK_FALSE(watch.next(2.5));
  CHECK_FALSE(watch.next(0.5));
}

TEST_CASE("a rise that stays is what is usual after a while") {
  SpikeWatch watch(kFactor);
  for (int step = 0; step < 100; ++step) CHECK_FALSE(watch.next(2 + 0.01 * (step % 3)));
  int told = 0;
  for (int step = 0; step < 200; ++step) told += watch.next(4 + 0.01 * (step % 3)).has_value();
  CHECK(told == 20);
  CHECK(watch.next(8).has_value());
}

TEST_CASE("the first steps and numbers that are none count for nothing") {
  SpikeWatch watch(kFactor);
  CHECK_FALSE(watch.next(1));
  CHECK_FALSE(watch.next(100));
  for (int step = 0; step < 100; ++step) CHECK_FALSE(watch.next(1));
  CHECK_FALSE(watch.next(NAN));
  CHECK_FALSE(watch.next(INFINITY));
  CHECK_FALSE(watch.next(1));
}

TEST_CASE("of a row of spikes the first one is told, with the numbers") {
  StepSpikes spikes(kFactor);
  int64_t step = 0;
  for (; step < 60; ++step) {
    CHECK_FALSE(spikes.news(step, 2 + 0.01 * static_cast<double>(step % 2), 1));
  }
  const auto first = spikes.news(step++, 3, 1);
  REQUIRE(first);
  CHECK(first->code == "loss.spike");
  CHECK(first->what.find("step 60: loss 3 where 2.005") == 0);
  CHECK(first->what.find("norm") == std::string::npos);
  CHECK_FALSE(spikes.news(step++, 3, 1));
  CHECK_FALSE(spikes.news(step++, 2, 1));
  const auto norm = spikes.news(step++, 2, 5);
  REQUIRE(norm);
  CHECK(norm->what.find("gradient norm 5 where 1 ") != std::string::npos);
  StepSpikes none(0);
  for (step = 0; step < 100; ++step) CHECK_FALSE(none.news(step, step == 90 ? 50 : 1, 1));
}

}  // namespace spikes_test
