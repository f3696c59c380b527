// f32 in two halves of 16 bits.
#include "common/half.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>

#include <doctest/doctest.h>

namespace mtl {

TEST_CASE("an f32 in two halves is the same f32, and its upper half the nearest bf16") {
  int64_t lost = 0, far = 0, towards_zero = 0;
  // Every lower half beside upper ones of all kinds: subnormal, odd, even, the largest, of both
  // signs.
  for (const uint32_t upper : {0x0000u, 0x0001u, 0x007fu, 0x0080u, 0x3f80u, 0x3f81u, 0x3fffu,
                               0x7f7fu, 0x8000u, 0x8001u, 0xbf80u, 0xc0ffu, 0xff7fu}) {
    for (uint32_t lower = 0; lower < 0x10000u; ++lower) {
      const float x = std::bit_cast<float>(upper << 16 | lower);
      const F32Parts parts = parts_of_f32(x);
      lost += std::bit_cast<uint32_t>(f32_of_parts(parts)) != (upper << 16 | lower);
      if (lower == 0x8000u) {
        towards_zero += parts.bf16 != static_cast<uint16_t>(upper + 1);
      } else {
        far += parts.bf16 != f32_to_bf16(x);
      }
    }
  }
  CHECK(lost == 0);
  CHECK(far == 0);
  CHECK(towards_zero == 0);
}

TEST_CASE("what is no number is none in its upper half either, and infinity stays") {
  for (const uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu, 0x7fc00000u}) {
    const float nan = std::bit_cast<float>(bits);
    CHECK(std::isnan(bf16_to_f32(parts_of_f32(nan).bf16)));
    CHECK(std::isnan(f32_of_parts(parts_of_f32(nan))));
    CHECK(std::signbit(f32_of_parts(parts_of_f32(nan))) == std::signbit(nan));
  }
  for (const float sign : {1.0f, -1.0f}) {
    const float infinite = sign * std::numeric_limits<float>::infinity();
    CHECK(f32_of_parts(parts_of_f32(infinite)) == infinite);
    CHECK(bf16_to_f32(parts_of_f32(infinite).bf16) == infinite);
  }
}

}  // namespace mtl
