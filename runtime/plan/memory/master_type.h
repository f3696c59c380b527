// What a parameter's fp32 master has beside the weight in the compute type.
#pragma once

#include <cstdint>
#include <optional>

#include "common/dtype.h"

namespace mtl {

// Nothing where the weight is fp32 itself; of bf16 the half that it lacks (common/half.h).
constexpr std::optional<DType> master_type(DType compute) {
  if (compute == DType::f32) return std::nullopt;
  return compute == DType::bf16 ? DType::u16 : DType::f32;
}
constexpr int64_t master_bytes(DType compute) {
  const std::optional<DType> type = master_type(compute);
  return type ? bytes_of(*type) : 0;
}

}  // namespace mtl
