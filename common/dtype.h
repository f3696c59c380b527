// Element types of tensors, as every room names them.
#pragma once

#include <cstdint>
#include <string_view>

namespace mtl {

// f16 is IEEE half precision (common/half.h converts it). f8_e4m3 and f8_e5m2 are the 8-bit floats
// of arXiv 2209.05433 (common/float8.h): operands of products, never weights or activations. u16:
// the lower halves of f32 whose upper ones are bf16 (common/half.h).
enum class DType : uint8_t { f32, bf16, f16, f64, i32, u8, u16, f8_e4m3, f8_e5m2 };

// The types of weights and activations.
constexpr bool is_compute_type(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

constexpr bool is_float8(DType dtype) {
  return dtype == DType::f8_e4m3 || dtype == DType::f8_e5m2;
}

constexpr int64_t bytes_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
    case DType::u16:
      return 2;
    case DType::f64:
      return 8;
    case DType::u8:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      return 1;
  }
  return 0;
}

// The safetensors spelling ("F32", "BF16", "F16", "F64", "I32", "U8", "U16", "F8_E4M3",
// "F8_E5M2").
constexpr std::string_view safetensors_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "F32";
    case DType::bf16:
      return "BF16";
    case DType::f16:
      return "F16";
    case DType::f64:
      return "F64";
    case DType::i32:
      return "I32";
    case DType::u8:
      return "U8";
    case DType::u16:
      return "U16";
    case DType::f8_e4m3:
      return "F8_E4M3";
    case DType::f8_e5m2:
      return "F8_E5M2";
  }
  return "";
}

}  // namespace mtl
