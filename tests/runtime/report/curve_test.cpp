// Curves in bounded memory: exact while they are short, and never without their extremes.
#include "runtime/report/curve.h"

#include <cmath>
#include <limits>

#include <doctest/doctest.h>

using namespace mtl;

TEST_CASE("a short curve is exact") {
  Curve curve(10);
  CHECK(curve.empty());
  CHECK(curve.points().empty());
  for (int i = 1; i <= 20; ++i) curve.add(10 * i, 21 - i);
  const auto points = curve.points();
  REQUIRE(points.size() == 20);
  CHECK(points[0].step == 10);
  CHECK(points[0].value == 20);
  CHECK(points[19].step == 200);
  CHECK(curve.lowest().step == 200);
  CHECK(curve.highest().value == 20);
  CHECK(curve.last().value == 1);
}

TEST_CASE("a long curve keeps its lowest and highest values, and both ends, in few points") {
  Curve curve(50);
  constexpr int kSteps = 100'000;
  for (int i = 1; i <= kSteps; ++i) {
    double value = std::sin(i * 0.001);
    if (i == 31'417) value = 77;
    if (i == 77'001) value = -55;
    curve.add(i, value);
  }
  const auto points = curve.points();
  CHECK(points.size() <= 202);
  CHECK(points.size() >= 100);
  CHECK(points.front().step == 1);
  CHECK(points.back().step == kSteps);
  CHECK(curve.highest().step == 31'417);
  CHECK(curve.lowest().step == 77'001);
  bool high = false, low = false;
  for (size_t i = 0; i < points.size(); ++i) {
    if (i > 0) CHECK(points[i - 1].step < points[i].step);
    high |= points[i].step == 31'417 && points[i].value == 77;
    low |= points[i].step == 77'001 && points[i].value == -55;
  }
  CHECK(high);
  CHECK(low);
}

TEST_CASE("means are of all values, spikes or not") {
  Curve curve(8);
  for (int i = 0; i < 1024; ++i) curve.add(i, i % 2 == 0 ? 1 : 3);
  const auto means = curve.means(4);
  REQUIRE(means.size() == 4);
  for (const CurvePoint& mean : means) CHECK(mean.value == doctest::Approx(2));
  CHECK(means[0].step < means[1].step);
  CHECK(Curve().means(4).empty());
}

TEST_CASE("numbers that are none are counted, and a step that is done again replaces what was") {
  Curve curve(100);
  for (int i = 1; i <= 30; ++i) curve.add(i, i);
  curve.add(31, std::numeric_limits<double>::quiet_NaN());
  curve.add(32, std::numeric_limits<double>::infinity());
  CHECK(curve.not_finite() == 2);
  CHECK(curve.last().step == 30);
  curve.add(21, 100);
  CHECK(curve.points().size() == 21);
  CHECK(curve.last().value == 100);
  CHECK(curve.highest().step == 21);
}
