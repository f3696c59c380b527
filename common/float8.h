// The 8-bit floats of P. Micikevicius et al., "FP8 Formats for Deep Learning" (arXiv 2209.05433),
// to f32 and back, for any processor. E4M3 (DType::f8_e4m3) has 4 exponent and 3 fraction bits, the
// largest value 448, the smallest 2^-9, no infinity, and one NaN per sign (0x7f). E5M2
// (DType::f8_e5m2) is f16 with 2 fraction bits: largest 57344, smallest 2^-16, infinities, NaNs.
//
// Rounded to nearest even and saturated: what is larger than the largest value, infinities too,
// becomes the largest; a NaN becomes 0x7f with its sign.
//
// As half.h: no branches, no arithmetic on subnormals, `static` for sources that are compiled once
// per instruction set.
#pragma once

#include <cstdint>

#include "common/half.h"

namespace mtl {

// What the sizes of a product in FP8 are multiples of: NVIDIA's tensor cores by cuBLASLt.
inline constexpr int64_t kFloat8Multiple = 16;

inline constexpr float kLargestE4m3 = 448, kLargestE5m2 = 57344;

// The format with kFraction bits, whose exponents begin (127 - kBias) below those of f32.
template <int kFraction, uint32_t kBias, uint32_t kLargestCode>
static inline uint8_t f32_to_float8(float x) {
  constexpr int kShift = 23 - kFraction;
  constexpr uint32_t kRebias = (127u - kBias) << 23;
  constexpr uint32_t kSmallestNormal = (128u - kBias) << 23;  // 2^(1 - kBias)
  // One of these has a last bit worth the smallest subnormal: adding it rounds to that.
  constexpr uint32_t kMagic = (127u + 24u - kBias - kFraction) << 23;
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t sign = bits >> 24 & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal =
      (magnitude + ((1u << (kShift - 1)) - 1u) + (magnitude >> kShift & 1u) - kRebias) >> kShift;
  const uint32_t subnormal = __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, magnitude) +
                                                              __builtin_bit_cast(float, kMagic)) -
                             kMagic;
  uint32_t code = magnitude < kSmallestNormal ? subnormal : normal;
  code = magnitude >= kSmallestNormal && code > kLargestCode ? kLargestCode : code;
  code = magnitude > 0x7f800000u ? 0x7fu : code;
  return static_cast<uint8_t>(sign | code);
}

[[maybe_unused]] static inline uint8_t f32_to_e4m3(float x) {
  return f32_to_float8<3, 7, 0x7e>(x);
}
[[maybe_unused]] static inline uint8_t f32_to_e5m2(float x) {
  return f32_to_float8<2, 15, 0x7b>(x);
}

[[maybe_unused]] static inline float e4m3_to_f32(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t magnitude = static_cast<uint32_t>(code & 0x7fu) << 20;
  constexpr uint32_t kRebias = (127u - 7u) << 23;
  // Subnormal ones (and 0) are f 2^-9: the difference of 2^-6 (1 + f / 8) and 2^-6.
  const float shifted = __builtin_bit_cast(float, magnitude + kRebias + (1u << 23));
  const uint32_t subnormal = __builtin_bit_cast(uint32_t, shifted - 0x1p-6f);
  uint32_t wide = magnitude < (1u << 23) ? subnormal : magnitude + kRebias;
  wide = (code & 0x7fu) == 0x7fu ? 0x7fc00000u : wide;
  return __builtin_bit_cast(float, sign | wide);
}
[[maybe_unused]] static inline float e5m2_to_f32(uint8_t code) {
  return f16_to_f32(static_cast<uint16_t>(code << 8));
}

// These two in kernels of GPUs too: the scale of a tensor (Quantize in runtime/device/device.h),
#if defined(__CUDACC__)
#define MTL_ON_GPU_TOO __host__ __device__
#else
#define MTL_ON_GPU_TOO
#endif
[[maybe_unused]] MTL_ON_GPU_TOO static inline float float8_scale(float amax, float largest) {
  const float limit = 0x1p126f;  // its inverse is a normal number
  const float scale = largest / amax;
  // An amax that is NaN fails the first comparison, as 0 does; an infinite one gives 0.
  if (!(amax > 0.0f) || scale == 0.0f) return 1.0f;
  return scale < limit ? scale : limit;
}
// and its inverse, or NaN.
[[maybe_unused]] MTL_ON_GPU_TOO static inline float float8_inverse(float amax, float scale) {
  return amax - amax == 0.0f ? 1.0f / scale : amax - amax;
}

}  // namespace mtl
