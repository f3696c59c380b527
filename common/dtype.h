// Element types of tensors, as every room names them.
#pragma once

#include <cstdint>
#include <string_view>

namespace mtl {

enum class DType : uint8_t { f32, bf16, f64, i32, u8 };

constexpr int64_t bytes_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
      return 2;
    case DType::f64:
      return 8;
    case DType::u8:
      return 1;
  }
  return 0;
}

// The safetensors spelling ("F32", "BF16", "F64", "I32", "U8").
constexpr std::string_view safetensors_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "F32";
    case DType::bf16:
      return "BF16";
    case DType::f64:
      return "F64";
    case DType::i32:
      return "I32";
    case DType::u8:
      return "U8";
  }
  return "";
}

}  // namespace mtl
