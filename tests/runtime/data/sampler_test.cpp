// The sampler: windows inside the corpus, the same for every layout, uniform.
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <rapidcheck.h>
#include <set>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/data/data.h"
#include "runtime/data/token_array.h"

namespace mtl {
namespace {

// Token i is i.
std::unique_ptr<TokenSource> counted_tokens(int64_t size) {
  auto tokens = std::make_shared<TokenArray>(1 << 20);
  std::vector<int32_t> ids(size);
  std::iota(ids.begin(), ids.end(), 0);
  tokens->append(ids);
  return make_token_range(tokens, 0, size);
}

TEST_CASE("sampler: every window lies inside the corpus") {
  CHECK(rc::check([](uint64_t seed) {
    const auto seq_len = *rc::gen::inRange<int64_t>(1, 50);
    const auto tokens = *rc::gen::inRange<int64_t>(seq_len + 1, 200);
    for (const SampleOrder order : {SampleOrder::random, SampleOrder::sequential}) {
      const Sampler sampler(tokens, seq_len, order, seed);
      for (int64_t i = 0; i < 500; ++i) {
        const int64_t offset = sampler.offset(i * 1234567);
        RC_ASSERT(offset >= 0);
        RC_ASSERT(offset + seq_len + 1 <= tokens);
      }
    }
  }));
  // Both ends of the range are reached, and a corpus of a terabyte does not overflow.
  const Sampler two(11, 9, SampleOrder::random, 1);
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 100; ++i) seen.insert(two.offset(i));
  CHECK(seen == std::set<int64_t>{0, 1});
  const int64_t large = int64_t{1} << 60;
  const Sampler wide(large, 4096, SampleOrder::random, 1);
  int64_t highest = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    const int64_t offset = wide.offset(i);
    REQUIRE(offset >= 0);
    REQUIRE(offset + 4097 <= large);
    highest = std::max(highest, offset);
  }
  CHECK(highest > large / 100 * 98);
}

TEST_CASE("sampler: the offsets of a seed never change") {
  // Philox4x32-10 with key = seed and counter = (index, "data"); the numbers are part of the
  // promise that a resumed or re-laid-out run sees the same data.
  const Sampler sampler(1000000, 64, SampleOrder::random, 1234);
  std::vector<int64_t> offsets;
  for (const int64_t index : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{1} << 40}) {
    offsets.push_back(sampler.offset(index));
  }
  CHECK(offsets == std::vector<int64_t>{879243, 794163, 284924, 650556});
  const Sampler other(1000000, 64, SampleOrder::random, 1235);
  const Sampler high(1000000, 64, SampleOrder::random, 1234 + (uint64_t{1} << 32));
  int equal = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    equal += sampler.offset(i) == other.offset(i);
    equal += sampler.offset(i) == high.offset(i);
  }
  CHECK(equal < 10);
}

TEST_CASE("sampler: uniform over the corpus") {
  constexpr int64_t kBins = 64;
  constexpr int64_t kDraws = 64000;
  const Sampler sampler(kBins * 17 + 8, 8, SampleOrder::random, 42);
  std::vector<int64_t> counts(kBins);
  for (int64_t i = 0; i < kDraws; ++i) ++counts[sampler.offset(i) / 17];
  double chi2 = 0;
  const double expected = static_cast<double>(kDraws) / kBins;
  for (const int64_t count : counts) chi2 += std::pow(count - expected, 2) / expected;
  // 63 degrees of freedom: mean 63, standard deviation 11.2.
  CHECK(chi2 > 63 - 5 * 11.2);
  CHECK(chi2 < 63 + 5 * 11.2);
}

TEST_CASE("sampler: sequential windows cover the corpus and start over") {
  const Sampler sampler(31, 10, SampleOrder::sequential, 7);
  std::vector<int64_t> offsets;
  for (int64_t i = 0; i < 7; ++i) offsets.push_back(sampler.offset(i));
  CHECK(offsets == std::vector<int64_t>{0, 10, 20, 0, 10, 20, 0});
  // One token fewer, and the last window has no last target.
  CHECK(Sampler(30, 10, SampleOrder::sequential, 7).offset(2) == 0);
}

TEST_CASE("sampler: fill in pieces is fill at once; targets are inputs shifted by one") {
  const auto source = counted_tokens(5000);
  constexpr int64_t kSeq = 13;
  for (const SampleOrder order : {SampleOrder::random, SampleOrder::sequential}) {
    const Sampler sampler(source->size(), kSeq, order, 99);
    constexpr int64_t kCount = 32;
    std::vector<int32_t> inputs(kCount * kSeq), targets(kCount * kSeq);
    sampler.fill(*source, 100, kCount, inputs, targets);
    for (int64_t i = 0; i < kCount; ++i) {
      for (int64_t j = 0; j < kSeq; ++j) {
        REQUIRE(inputs[i * kSeq + j] == sampler.offset(100 + i) + j);
        REQUIRE(targets[i * kSeq + j] == inputs[i * kSeq + j] + 1);
      }
    }
    for (const int64_t piece : {1, 3, 8}) {
      std::vector<int32_t> in(kCount * kSeq), out(kCount * kSeq);
      for (int64_t first = 0; first < kCount; first += piece) {
        const int64_t count = std::min(piece, kCount - first);
        sampler.fill(*source, 100 + first, count, std::span(in).subspan(first * kSeq, count * kSeq),
                     std::span(out).subspan(first * kSeq, count * kSeq));
      }
      CHECK(in == inputs);
      CHECK(out == targets);
    }
  }
}

TEST_CASE("sampler: no window, no sampler") {
  for (const auto& [tokens, seq_len] : std::vector<std::pair<int64_t, int64_t>>{
           {10, 10}, {0, 1}, {10, 0}, {10, -1}, {5, std::numeric_limits<int64_t>::max()}}) {
    for (const SampleOrder order : {SampleOrder::random, SampleOrder::sequential}) {
      CHECK_THROWS_AS(Sampler(tokens, seq_len, order, 1), Error);
    }
  }
}

}  // namespace
}  // namespace mtl
