// Which tokens can be drawn, how often, and that a seed decides.
#include "runtime/engine/sampling.h"

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include <doctest/doctest.h>

#include "common/error.h"

using namespace mtl;

namespace sampling_test {

namespace {

constexpr int kDraws = 20'000;

std::vector<int> counts(const std::vector<float>& logits, const Sampling& sampling) {
  std::vector<int> all(logits.size(), 0);
  for (int i = 0; i < kDraws; ++i) ++all[static_cast<size_t>(sample_token(logits, sampling, i))];
  return all;
}

std::set<size_t> drawn(const std::vector<float>& logits, const Sampling& sampling) {
  std::set<size_t> tokens;
  const std::vector<int> all = counts(logits, sampling);
  for (size_t token = 0; token < all.size(); ++token) {
    if (all[token] > 0) tokens.insert(token);
  }
  return tokens;
}

// Of probabilities 0.05, 0.5, 0.15, 0.3.
const std::vector<float> kLogits = {std::log(0.05f), std::log(0.5f), std::log(0.15f),
                                    std::log(0.3f)};
using Tokens = std::set<size_t>;

}  // namespace

TEST_CASE("tokens are drawn as often as their probabilities say") {
  const std::vector<int> plain = counts(kLogits, {.temperature = 1});
  const double expected[] = {0.05, 0.5, 0.15, 0.3};
  for (size_t token = 0; token < 4; ++token) {
    CHECK(plain[token] / double{kDraws} == doctest::Approx(expected[token]).epsilon(0.08));
  }
  // At half the temperature probabilities are squared: 0.25 of 0.365.
  const std::vector<int> cold = counts(kLogits, {.temperature = 0.5});
  CHECK(cold[1] / double{kDraws} == doctest::Approx(0.25 / 0.365).epsilon(0.05));
}

TEST_CASE("the likeliest, the first k of them, and those that have p together") {
  CHECK(drawn(kLogits, {.temperature = 0}) == Tokens{1});
  CHECK(drawn(kLogits, {.temperature = 1, .top_k = 1}) == Tokens{1});
  CHECK(drawn(kLogits, {.temperature = 1, .top_k = 3}) == Tokens{1, 2, 3});
  CHECK(drawn(kLogits, {.temperature = 1, .top_k = 100}) == Tokens{0, 1, 2, 3});
  CHECK(drawn(kLogits, {.temperature = 1, .top_p = 0}) == Tokens{1});
  CHECK(drawn(kLogits, {.temperature = 1, .top_p = 0.45}) == Tokens{1});
  CHECK(drawn(kLogits, {.temperature = 1, .top_p = 0.7}) == Tokens{1, 3});
  CHECK(drawn(kLogits, {.temperature = 1, .top_p = 0.9}) == Tokens{1, 2, 3});
  CHECK(drawn(kLogits, {.temperature = 1, .top_p = 1}) == Tokens{0, 1, 2, 3});
  // p counts among the k: 0.5 of 0.8 is 0.625, and of all 0.5.
  CHECK(drawn(kLogits, {.temperature = 1, .top_k = 2, .top_p = 0.6}) == Tokens{1});
  CHECK(drawn(kLogits, {.temperature = 1, .top_p = 0.6}) == Tokens{1, 3});
  // Of equals it is the first.
  CHECK(drawn({2, 2, 2}, {.temperature = 1, .top_k = 2}) == Tokens{0, 1});
}

TEST_CASE("a seed and a place give one token") {
  int same = 0;
  for (int i = 0; i < 200; ++i) {
    const int32_t first = sample_token(kLogits, {.temperature = 1, .seed = 7}, i);
    CHECK(first == sample_token(kLogits, {.temperature = 1, .seed = 7}, i));
    same += first == sample_token(kLogits, {.temperature = 1, .seed = 8}, i) ? 1 : 0;
  }
  CHECK(same < 150);
}

TEST_CASE("scores that are no numbers are an error") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinite = std::numeric_limits<float>::infinity();
  CHECK_THROWS_AS(sample_token(std::vector<float>{0, nan}, {}, 0), Error);
  CHECK_THROWS_AS(sample_token(std::vector<float>{0, infinite}, {}, 0), Error);
  CHECK_THROWS_AS(sample_token(std::vector<float>{-infinite, -infinite}, {}, 0), Error);
  // What cannot be is only never drawn.
  CHECK(drawn({0, -infinite}, {.temperature = 1}) == Tokens{0});
}

}  // namespace sampling_test
