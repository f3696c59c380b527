// Elements of 16 bits as floats: every value exactly.
#pragma once

#include <bit>
#include <cstdint>

namespace mtl::ptx {

inline float widened_bf16(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}
inline float widened_half(uint16_t bits) {
  // The exponent's bias grows from 15 to 127; by a product, so that subnormal ones come right.
  const float size = std::bit_cast<float>((bits & 0x7fffu) << 13) * 0x1p112f;
  const uint32_t special = (bits & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;  // infinity and NaN
  return std::bit_cast<float>(std::bit_cast<uint32_t>(size) | special | (bits & 0x8000u) << 16);
}

}  // namespace mtl::ptx
