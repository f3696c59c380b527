#include "runtime/engine/init.h"

#include <cmath>

#include <doctest/doctest.h>

using namespace mtl;

namespace init_test {

TEST_CASE("inverse_normal inverts the normal distribution function") {
  for (double p : {1e-9, 1e-5, 0.001, 0.0242, 0.0243, 0.3, 0.5, 0.7, 0.976, 0.9999, 1 - 1e-9}) {
    const double x = inverse_normal(p);
    CAPTURE(p);
    CHECK(0.5 * std::erfc(-x / std::sqrt(2.0)) == doctest::Approx(p).epsilon(1e-7));
  }
  CHECK(inverse_normal(0.5) == 0.0);
}

TEST_CASE("the stream is standard normal, and any piece of it equals the whole") {
  const NormalStream stream(42, "transformer.wte.weight");
  std::vector<float> whole(100'000);
  stream.fill(0, static_cast<int64_t>(whole.size()), 1.0, whole.data());
  double mean = 0, square = 0, fourth = 0;
  for (float x : whole) {
    mean += x;
    square += static_cast<double>(x) * x;
    fourth += std::pow(static_cast<double>(x), 4);
  }
  const auto n = static_cast<double>(whole.size());
  // Standard errors: 1/sqrt(n) = 0.0032, sqrt(2/n) = 0.0045, sqrt(96/n) = 0.031; four of each.
  CHECK(std::abs(mean / n) < 0.0127);
  CHECK(std::abs(square / n - 1) < 0.018);
  CHECK(std::abs(fourth / n - 3) < 0.124);
  for (int64_t first : {0, 1, 2, 3, 5, 4096, 77777}) {
    std::vector<float> piece(33);
    stream.fill(first, 33, 1.0, piece.data());
    CHECK(std::equal(piece.begin(), piece.end(), whole.begin() + first));
  }
}

TEST_CASE("streams of other seeds and names differ") {
  float a = 0, b = 0, c = 0;
  NormalStream(1, "a").fill(0, 1, 1.0, &a);
  NormalStream(2, "a").fill(0, 1, 1.0, &b);
  NormalStream(1, "b").fill(0, 1, 1.0, &c);
  CHECK(a != b);
  CHECK(a != c);
}

TEST_CASE("initial weights are stable across versions") {
  float x[4];
  NormalStream(1234, "transformer.wte.weight").fill(0, 4, 0.02, x);
  CHECK(x[0] == 0.0153726265f);
  CHECK(x[1] == 0.00748824701f);
  CHECK(x[2] == 0.0031357226f);
  CHECK(x[3] == 0.0405913368f);
}

}  // namespace init_test
