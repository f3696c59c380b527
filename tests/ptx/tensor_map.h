// What a copy engine has to know of a tensor: the 128 bytes that the host's cuTensorMapEncodeTiled
// writes for kernels that the PTX machine runs. The driver's own layout is not documented.
#pragma once

#include <cstdint>

namespace mtl::ptx {

// Dimension 0 is the one whose elements lie side by side.
struct alignas(64) TensorMap {
  static constexpr uint64_t kMark = 0x70616d2d726f736e;

  uint64_t mark = kMark;
  const unsigned char* base = nullptr;  // a multiple of 16
  uint64_t sizes[4] = {};               // elements
  uint64_t strides[3] = {};             // bytes, of dimensions 1 to 3; multiples of 16
  uint32_t box[4] = {};                 // elements
  uint32_t element_bytes = 0;
  uint32_t swizzle_bytes = 0;  // 128, 64, 32 or 0: none
};
static_assert(sizeof(TensorMap) == 128);

}  // namespace mtl::ptx
