#include "runtime/engine/lr.h"

#include <cmath>
#include <rapidcheck.h>

#include <doctest/doctest.h>

using namespace mtl;
using doctest::Approx;

namespace lr_test {

namespace {

// From 1 to 0.2 in 100 steps after a warm-up of 10.
TrainSpec with_schedule(const std::string& schedule) {
  TrainSpec spec;
  spec.lr.max = 1.0;
  spec.lr.min = 0.2;
  spec.lr.warmup = 10;
  spec.lr.schedule = schedule;
  return spec;
}

constexpr int64_t kSteps = 110;
const char* const kSchedules[] = {"cosine", "linear", "constant", "inverse_sqrt", "wsd"};
const char* const kStyles[] = {"exponential", "linear", "cosine", "minus_sqrt"};

}  // namespace

TEST_CASE("every schedule begins with the same linear warm-up") {
  for (const char* schedule : kSchedules) {
    CAPTURE(schedule);
    const TrainSpec spec = with_schedule(schedule);
    CHECK(learning_rate(spec, kSteps, 0) == Approx(0.1));
    CHECK(learning_rate(spec, kSteps, 4) == Approx(0.5));
    CHECK(learning_rate(spec, kSteps, 9) == 1.0);
    CHECK(learning_rate(spec, kSteps, 10) == 1.0);
  }
}

TEST_CASE("cosine and linear fall to the minimum and stay there") {
  TrainSpec spec = with_schedule("cosine");
  CHECK(learning_rate(spec, kSteps, 35) == Approx(0.2 + 0.8 * 0.8535533905932737));
  CHECK(learning_rate(spec, kSteps, 60) == Approx(0.6));
  CHECK(learning_rate(spec, kSteps, 110) == Approx(0.2));
  CHECK(learning_rate(spec, kSteps, 500) == Approx(0.2));
  spec.lr.schedule = "linear";
  CHECK(learning_rate(spec, kSteps, 35) == Approx(0.8));
  CHECK(learning_rate(spec, kSteps, 60) == Approx(0.6));
  CHECK(learning_rate(spec, kSteps, 109) == Approx(0.208));
  CHECK(learning_rate(spec, kSteps, 500) == Approx(0.2));
  // lr.decay wins over the length of the run.
  spec.lr.decay = 60;
  CHECK(learning_rate(spec, kSteps, 35) == Approx(0.6));
  CHECK(learning_rate(spec, kSteps, 100) == Approx(0.2));
}

TEST_CASE("constant stays and inverse_sqrt falls with the root") {
  TrainSpec spec = with_schedule("constant");
  CHECK(learning_rate(spec, kSteps, 100) == 1.0);
  spec.lr.schedule = "inverse_sqrt";
  CHECK(learning_rate(spec, kSteps, 40) == Approx(0.5));
  CHECK(learning_rate(spec, kSteps, 90) == Approx(1.0 / 3));
  CHECK(learning_rate(spec, kSteps, 250) == Approx(0.2));
  CHECK(learning_rate(spec, kSteps, 1'000'000) == 0.2);
  spec.lr.warmup = 0;
  spec.lr.min = 0;
  CHECK(learning_rate(spec, kSteps, 0) == 1.0);
  CHECK(learning_rate(spec, kSteps, 1) == 1.0);
  CHECK(learning_rate(spec, kSteps, 4) == Approx(0.5));
}

TEST_CASE("wsd stays and then falls in the chosen form") {
  TrainSpec spec = with_schedule("wsd");
  spec.lr.wsd_decay = 40;  // from step 70 to 110
  const auto at = [&](const char* style, int64_t step) {
    spec.lr.wsd_style = style;
    return learning_rate(spec, kSteps, step);
  };
  for (const char* style : kStyles) {
    CAPTURE(style);
    CHECK(at(style, 11) == 1.0);
    CHECK(at(style, 70) == 1.0);
    CHECK(at(style, 71) < 1.0);
    CHECK(at(style, 110) == Approx(0.2));
    CHECK(at(style, 200) == Approx(0.2));
  }
  CHECK(at("exponential", 90) == Approx(0.2 + 0.8 * 0.41421356237309503));
  CHECK(at("linear", 90) == Approx(0.6));
  CHECK(at("cosine", 80) == Approx(0.2 + 0.8 * 0.8535533905932737));
  CHECK(at("minus_sqrt", 80) == Approx(0.6));
  // Auto is a tenth, here 11 steps.
  spec.lr.wsd_decay = 0;
  CHECK(at("linear", 99) == 1.0);
  CHECK(at("linear", 100) == Approx(0.2 + 0.8 * 10 / 11));
  // Longer than what follows the warm-up: it begins there.
  spec.lr.wsd_decay = 1000;
  CHECK(at("linear", 10) == 1.0);
  CHECK(at("linear", 60) == Approx(0.6));
}

TEST_CASE("no schedule rises after the warm-up or leaves its bounds or jumps") {
  CHECK(rc::check("any schedule", [] {
    TrainSpec spec;
    spec.lr.max = 1.0;
    spec.lr.min = *rc::gen::inRange(0, 101) / 100.0;
    spec.lr.schedule =
        *rc::gen::elementOf(std::vector<std::string>(std::begin(kSchedules), std::end(kSchedules)));
    spec.lr.wsd_style =
        *rc::gen::elementOf(std::vector<std::string>(std::begin(kStyles), std::end(kStyles)));
    const int64_t steps = *rc::gen::inRange<int64_t>(1, 400);
    spec.lr.warmup = *rc::gen::inRange<int64_t>(0, steps);
    spec.lr.decay = *rc::gen::inRange<int64_t>(0, 2 * steps);
    spec.lr.wsd_decay = *rc::gen::inRange<int64_t>(0, 2 * steps);
    const int64_t decay = spec.lr.decay > 0 ? spec.lr.decay : steps;
    int64_t fall = decay - spec.lr.warmup;
    if (spec.lr.schedule == "wsd") {
      const int64_t own =
          spec.lr.wsd_decay > 0 ? spec.lr.wsd_decay : std::max<int64_t>(decay / 10, 1);
      fall = std::min(fall, own);
    }
    // What one of n steps takes off: minus_sqrt 1 / sqrt(n) in the first, a half cosine pi / 2n.
    const double steepest = spec.lr.schedule == "inverse_sqrt"
                                ? 1 - std::sqrt(0.5)
                                : 1 / std::sqrt(static_cast<double>(std::max<int64_t>(fall, 1)));
    double last = 0;
    for (int64_t step = 0; step < 2 * steps + 10; ++step) {
      const double now = learning_rate(spec, steps, step);
      RC_ASSERT(std::isfinite(now));
      if (step < spec.lr.warmup) {
        RC_ASSERT(now > last);
      } else {
        if (step == spec.lr.warmup && decay > step) RC_ASSERT(std::abs(now - 1.0) < 1e-12);
        RC_ASSERT(now <= 1.0);
        RC_ASSERT(now >= spec.lr.min - 1e-12);
        if (step > spec.lr.warmup) {
          RC_ASSERT(now <= last + 1e-12);
          const double form = fall > 3 ? std::max(steepest, 1.6 / static_cast<double>(fall)) : 1.0;
          RC_ASSERT(last - now <= form + 1e-12);
        }
      }
      last = now;
    }
  }));
}

TEST_CASE("weight decay moves from its begin to its end") {
  TrainSpec spec;
  spec.optimizer.weight_decay = 0.1;
  spec.optimizer.weight_decay_end = 0.5;
  CHECK(weight_decay(spec, 100, 99) == 0.1);
  spec.optimizer.weight_decay_ramp = "linear";
  CHECK(weight_decay(spec, 100, 0) == 0.1);
  CHECK(weight_decay(spec, 100, 25) == Approx(0.2));
  CHECK(weight_decay(spec, 100, 100) == Approx(0.5));
  CHECK(weight_decay(spec, 100, 1000) == Approx(0.5));
  spec.optimizer.weight_decay_ramp = "cosine";
  CHECK(weight_decay(spec, 100, 0) == 0.1);
  CHECK(weight_decay(spec, 100, 25) == Approx(0.1 + 0.4 * 0.1464466094067262));
  CHECK(weight_decay(spec, 100, 50) == Approx(0.3));
  CHECK(weight_decay(spec, 100, 100) == Approx(0.5));
  // It may fall as well.
  spec.optimizer.weight_decay_end = 0;
  double last = 1;
  for (int64_t step = 0; step <= 100; ++step) {
    const double now = weight_decay(spec, 100, step);
    CHECK(now < last);
    last = now;
  }
  CHECK(last == Approx(0));
}

}  // namespace lr_test
