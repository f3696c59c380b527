// The two 16-bit floats to f32 and back, for any processor. IEEE half precision (DType::f16): 1
// sign, 5 exponent and 10 fraction bits, so that the largest finite value is 65504 and the smallest
// is 2^-24. bf16: the upper half of an f32. Rounded to nearest even; too large becomes infinity,
// subnormals are kept, a NaN stays a quiet NaN of the same sign: the bits that the F16C and
// AVX512_BF16 instructions give (the latter but for subnormals).
//
// Without branches, so that loops over these become vector code; without arithmetic on subnormals,
// so that a thread that flushes them gets the same bits. `static`: sources that are compiled once
// per instruction set include this, and the linker must not mix their copies.
#pragma once

#include <cstdint>

namespace mtl {

[[maybe_unused]] static inline float f16_to_f32(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fffu) << 13;
  constexpr uint32_t kRebias = (127u - 15u) << 23;
  // Normal numbers by their exponent; infinity and NaN have the largest exponent in both formats.
  const uint32_t quiet = magnitude > (0x7c00u << 13) ? 0x400000u : 0u;
  const uint32_t normal =
      magnitude >= (0x7c00u << 13) ? (magnitude + 2 * kRebias) | quiet : magnitude + kRebias;
  // Subnormal ones (and 0) are f 2^-24: the difference of 2^-14 (1 + f / 1024) and 2^-14.
  constexpr float kSmallestNormal = 0x1p-14f;
  const float shifted = __builtin_bit_cast(float, magnitude + kRebias + (1u << 23));
  const uint32_t subnormal = __builtin_bit_cast(uint32_t, shifted - kSmallestNormal);
  return __builtin_bit_cast(float, sign | (magnitude < (1u << 23) ? subnormal : normal));
}

[[maybe_unused]] static inline uint16_t f32_to_f16(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  constexpr uint32_t kRebias = (127u - 15u) << 23;
  // The carry of the rounding may reach the exponent, and infinity's: as it should.
  const uint32_t normal = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - kRebias) >> 13;
  // One half has a last bit worth 2^-24, the smallest subnormal: the addition rounds to it.
  const uint32_t subnormal =
      __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t nan = 0x7e00u | (magnitude >> 13 & 0x3ffu);
  uint32_t half = magnitude < 0x38800000u ? subnormal : normal;  // below 2^-14
  half = magnitude >= 0x47800000u ? 0x7c00u : half;              // 65536 and above
  half = magnitude > 0x7f800000u ? nan : half;
  return static_cast<uint16_t>(sign | half);
}

[[maybe_unused]] static inline float bf16_to_f32(uint16_t x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x) << 16);
}

// The upper half of the result holds the bf16.
[[maybe_unused]] static inline uint32_t round_to_bf16(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1u);
  return (bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded;
}

[[maybe_unused]] static inline uint16_t f32_to_bf16(float x) {
  return static_cast<uint16_t>(round_to_bf16(x) >> 16);
}

// An f32 in two halves of 16 bits: the upper one is a bf16, rounded to nearest, ties away from
// zero; the lower one, as a signed number of the f32's last places, is what that lacks. Both
// together are the f32, every bit of it (with ties to even they would not be: of a tie the lower
// half does not say on which side it was). A NaN stays one of the same sign, in the bf16 too.
struct F32Parts {
  uint16_t bf16, rest;
};
[[maybe_unused]] static inline F32Parts parts_of_f32(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const uint32_t upper = nan ? bits | 0x400000u : bits + 0x8000u;
  return {static_cast<uint16_t>(upper >> 16), static_cast<uint16_t>(nan ? 0 : bits)};
}
[[maybe_unused]] static inline float f32_of_parts(F32Parts parts) {
  const uint32_t rest = (parts.rest ^ 0x8000u) - 0x8000u;  // with its sign
  return __builtin_bit_cast(float, (static_cast<uint32_t>(parts.bf16) << 16) + rest);
}

}  // namespace mtl
