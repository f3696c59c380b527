// 16-bit floats and f32.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace mtl::ptx {

inline float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}
// To nearest even; NaN is 0x7fff.
inline uint16_t float_to_bf16(float x) {
  if (std::isnan(x)) return 0x7fff;
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float half_to_float(uint16_t bits) {
  return static_cast<float>(std::bit_cast<_Float16>(bits));
}
inline uint16_t float_to_half(float x) {
  if (std::isnan(x)) return 0x7fff;
  return std::bit_cast<uint16_t>(static_cast<_Float16>(x));
}

// FP8 of "FP8 Formats for Deep Learning" (Micikevicius et al., 2022), to nearest even; what is
// beyond the largest number is that number, NaN is 0x7f.
template <int kMantissa>  // E4M3: 3, E5M2: 2
uint8_t float_to_fp8(float x) {
  constexpr int kBias = kMantissa == 3 ? 7 : 15;
  constexpr float kMost = kMantissa == 3 ? 448 : 57344;
  if (std::isnan(x)) return 0x7f;
  const int sign = std::signbit(x) ? 0x80 : 0;
  float size = std::fabs(x);
  if (size > kMost) size = kMost;
  // The step between numbers there: below the least normal one it stays the same.
  int exponent = size > 0 ? std::ilogb(size) : -kBias;
  if (exponent < 1 - kBias) exponent = 1 - kBias;
  const float steps = std::nearbyint(std::ldexp(size, kMantissa - exponent));
  // In steps from 0 on the bits count up over exponents too.
  const int bits = static_cast<int>(steps) + ((exponent + kBias - 1) << kMantissa);
  return static_cast<uint8_t>(sign | bits);
}

}  // namespace mtl::ptx
