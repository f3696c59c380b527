// The arithmetic of reductions, without any ranks.
#include "runtime/comm/reduce.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

using namespace mtl;

namespace {

template <typename T>
std::vector<T> reduce(DType dtype, Reduce op, const std::vector<std::vector<T>>& ranks) {
  std::vector<T> out(ranks[0].size());
  std::vector<const void*> inputs;
  for (const auto& rank : ranks) inputs.push_back(rank.data());
  void* output = out.data();
  reduce_in_order(dtype, op, inputs, {&output, 1}, static_cast<int64_t>(out.size()));
  return out;
}

}  // namespace

TEST_CASE("sums are taken from the first rank on") {
  // (1e8 + 1) - 1e8 is 0 in f32, (1e8 - 1e8) + 1 is 1.
  CHECK(reduce<float>(DType::f32, Reduce::sum, {{1e8f}, {1}, {-1e8f}})[0] == 0);
  CHECK(reduce<float>(DType::f32, Reduce::sum, {{1e8f}, {-1e8f}, {1}})[0] == 1);
  CHECK(reduce<double>(DType::f64, Reduce::sum, {{1e17}, {1}, {-1e17}})[0] == 0);
  // Not 0 + x0 + ...: the sum of negative zeros is a negative zero.
  CHECK(std::signbit(reduce<float>(DType::f32, Reduce::sum, {{-0.0f}, {-0.0f}})[0]));
}

TEST_CASE("i32 wraps around") {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  CHECK(reduce<int32_t>(DType::i32, Reduce::sum, {{kMax}, {1}})[0] ==
        std::numeric_limits<int32_t>::min());
}

TEST_CASE("the maximum of anything and NaN is NaN, wherever it comes from") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (size_t at = 0; at < 3; ++at) {
    std::vector<std::vector<float>> ranks(3, std::vector<float>(37, 1));
    for (float& x : ranks[at]) x = nan;
    for (const float x : reduce(DType::f32, Reduce::max, ranks)) CHECK(std::isnan(x));
  }
  CHECK(reduce<double>(DType::f64, Reduce::max, {{-3}, {-2}, {-5}})[0] == -2);
  CHECK(reduce<int32_t>(DType::i32, Reduce::max, {{-3}, {-2}, {-5}})[0] == -2);
}

TEST_CASE("bf16: f32 inside, one rounding to nearest even, infinities and NaN kept") {
  const auto bf16 = [](float x) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16); };
  // 256 + 1 + 1: rounding after every step would stay at 256 (the next value is 258).
  CHECK(reduce<uint16_t>(DType::bf16, Reduce::sum, {{bf16(256)}, {bf16(1)}, {bf16(1)}})[0] ==
        bf16(258));
  // 257 lies half way between 256 (even) and 258; 259 between 258 and 260 (even).
  CHECK(reduce<uint16_t>(DType::bf16, Reduce::sum, {{bf16(256)}, {bf16(1)}})[0] == bf16(256));
  CHECK(reduce<uint16_t>(DType::bf16, Reduce::sum, {{bf16(258)}, {bf16(1)}})[0] == bf16(260));
  const uint16_t infinity = 0x7f80, largest = 0x7f7f, nan = 0x7fff;
  CHECK(reduce<uint16_t>(DType::bf16, Reduce::sum, {{largest}, {largest}})[0] == infinity);
  const uint16_t sum = reduce<uint16_t>(DType::bf16, Reduce::sum, {{nan}, {bf16(1)}})[0];
  CHECK((sum & 0x7fff) > infinity);
  const uint16_t difference =
      reduce<uint16_t>(DType::bf16, Reduce::sum, {{infinity}, {uint16_t{0xff80}}})[0];
  CHECK((difference & 0x7fff) > infinity);
  CHECK(reduce<uint16_t>(DType::bf16, Reduce::max, {{bf16(-2)}, {bf16(-1)}})[0] == bf16(-1));
  // Alone, every value stays what it is.
  std::vector<uint16_t> all;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    if ((bits & 0x7fff) <= infinity) all.push_back(static_cast<uint16_t>(bits));
  }
  CHECK(reduce<uint16_t>(DType::bf16, Reduce::sum, {all}) == all);
}

TEST_CASE("f16: f32 inside, one rounding to nearest even, infinities and NaN kept") {
  // The compiler's own conversion, which is libgcc's.
  const auto f16 = [](float x) { return std::bit_cast<uint16_t>(static_cast<_Float16>(x)); };
  const auto sum = [](const std::vector<std::vector<uint16_t>>& ranks) {
    return reduce<uint16_t>(DType::f16, Reduce::sum, ranks)[0];
  };
  // 2048 + 1 + 1: rounding after every step would stay at 2048 (the next value is 2050).
  CHECK(sum({{f16(2048)}, {f16(1)}, {f16(1)}}) == f16(2050));
  // 2049 lies half way between 2048 (even) and 2050; 2051 between 2050 and 2052 (even).
  CHECK(sum({{f16(2048)}, {f16(1)}}) == f16(2048));
  CHECK(sum({{f16(2050)}, {f16(1)}}) == f16(2052));
  const uint16_t infinity = 0x7c00, largest = 0x7bff, smallest = 1;
  CHECK(sum({{largest}, {largest}}) == infinity);
  CHECK(sum({{largest}, {largest}, {f16(-65504)}}) == largest);
  CHECK(sum({{smallest}, {smallest}}) == 2);
  CHECK((sum({{uint16_t{0x7fff}}, {f16(1)}}) & 0x7fff) > infinity);
  CHECK((sum({{infinity}, {uint16_t{0xfc00}}}) & 0x7fff) > infinity);
  CHECK(reduce<uint16_t>(DType::f16, Reduce::max, {{f16(-2)}, {f16(-1)}})[0] == f16(-1));
  // Alone, every value stays what it is.
  std::vector<uint16_t> all;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    if ((bits & 0x7fff) <= infinity) all.push_back(static_cast<uint16_t>(bits));
  }
  CHECK(reduce<uint16_t>(DType::f16, Reduce::sum, {all}) == all);
  // Pairs of any values: the sum of two halves is exact or correctly rounded in f32, then once.
  std::vector<uint16_t> others(all.rbegin(), all.rend());
  std::rotate(others.begin(), others.begin() + 12345, others.end());
  const std::vector<uint16_t> sums = reduce<uint16_t>(DType::f16, Reduce::sum, {all, others});
  int64_t wrong = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const float expected = static_cast<float>(std::bit_cast<_Float16>(all[i])) +
                           static_cast<float>(std::bit_cast<_Float16>(others[i]));
    wrong += std::isnan(expected) ? (sums[i] & 0x7fff) <= infinity : sums[i] != f16(expected);
  }
  CHECK(wrong == 0);
}

TEST_CASE("outputs may be the inputs, and all get the result, at any length") {
  for (const int64_t n : {0, 1, 15, 4095, 4096, 4097, 20'001}) {
    std::array<std::vector<float>, 3> ranks;
    for (size_t r = 0; r < 3; ++r) {
      for (int64_t i = 0; i < n; ++i) ranks[r].push_back(static_cast<float>(i * 3) + float(r));
    }
    const std::vector<const void*> inputs = {ranks[0].data(), ranks[1].data(), ranks[2].data()};
    const std::vector<void*> outputs = {ranks[0].data(), ranks[1].data(), ranks[2].data()};
    reduce_in_order(DType::f32, Reduce::sum, inputs, outputs, n);
    bool right = true;
    for (const auto& rank : ranks) {
      for (int64_t i = 0; i < n; ++i) {
        right = right && rank[static_cast<size_t>(i)] == static_cast<float>(i * 9 + 3);
      }
    }
    CHECK(right);
  }
}
