// Elements of any type as doubles, and back to what a model's weights are stored as.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "common/dtype.h"
#include "common/float8.h"
#include "common/half.h"

namespace mtl {

inline double element_as_double(DType dtype, const void* data, int64_t i) {
  const auto at = [&]<typename T>(T value) {
    std::memcpy(&value, static_cast<const char*>(data) + i * static_cast<int64_t>(sizeof(T)),
                sizeof(T));
    return value;
  };
  switch (dtype) {
    case DType::f32:
      return static_cast<double>(at(float{}));
    case DType::bf16:
      return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(at(uint16_t{})) << 16));
    case DType::f16:
      return static_cast<double>(f16_to_f32(at(uint16_t{})));
    case DType::f64:
      return at(double{});
    case DType::i32:
      return static_cast<double>(at(int32_t{}));
    case DType::u8:
      return static_cast<double>(at(uint8_t{}));
    case DType::u16:
      return static_cast<double>(at(uint16_t{}));
    case DType::f8_e4m3:
      return static_cast<double>(e4m3_to_f32(at(uint8_t{})));
    case DType::f8_e5m2:
      return static_cast<double>(e5m2_to_f32(at(uint8_t{})));
  }
  return 0;
}

// Rounds to the nearest, ties to even. For f32, bf16, f16, f64.
void store_double(DType dtype, double value, void* data, int64_t i);

}  // namespace mtl
