// Rows of numbers of 16 bits, of either type (common/half.h), from f32 and to it.
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "common/half.h"

namespace mtl {

// `type`: f16 or bf16.
inline void widen(DType type, const uint16_t* from, int64_t count, float* to) {
  if (type == DType::f16) {
    for (int64_t i = 0; i < count; ++i) to[i] = f16_to_f32(from[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = bf16_to_f32(from[i]);
  }
}

inline void narrow(DType type, const float* from, int64_t count, uint16_t* to) {
  if (type == DType::f16) {
    for (int64_t i = 0; i < count; ++i) to[i] = f32_to_f16(from[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = f32_to_bf16(from[i]);
  }
}

}  // namespace mtl
