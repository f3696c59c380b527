#include "runtime/engine/lr.h"

#include <doctest/doctest.h>

using namespace mtl;

TEST_CASE("linear warm-up, cosine decay, then the minimum") {
  TrainSpec spec;
  spec.train.steps = 110;
  spec.lr.max = 1.0;
  spec.lr.min = 0.1;
  spec.lr.warmup = 10;
  CHECK(learning_rate(spec, 0) == doctest::Approx(0.1));
  CHECK(learning_rate(spec, 9) == doctest::Approx(1.0));
  CHECK(learning_rate(spec, 10) == doctest::Approx(1.0));
  CHECK(learning_rate(spec, 60) == doctest::Approx(0.55));
  CHECK(learning_rate(spec, 110) == doctest::Approx(0.1));
  CHECK(learning_rate(spec, 500) == doctest::Approx(0.1));
  spec.lr.decay = 60;
  CHECK(learning_rate(spec, 35) == doctest::Approx(0.55));
  CHECK(learning_rate(spec, 100) == doctest::Approx(0.1));
  spec.lr.schedule = "constant";
  CHECK(learning_rate(spec, 4) == doctest::Approx(0.5));
  CHECK(learning_rate(spec, 100) == doctest::Approx(1.0));
}
