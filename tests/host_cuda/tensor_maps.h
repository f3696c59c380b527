// What cuTensorMapEncodeTiled is told, and who writes it down for whoever copies.
#pragma once

#include <cstdint>

namespace mtl::host_cuda {

// Of elements of 16 bits, in four dimensions; 0 is the one whose elements lie side by side.
struct TiledTensor {
  const unsigned char* data = nullptr;
  uint64_t sizes[4] = {};
  uint64_t strides[3] = {};  // bytes, of dimensions 1 to 3
  uint32_t box[4] = {};
  uint32_t swizzle_bytes = 0;  // 128 or 64
};

// Into the 128 bytes of a CUtensorMap; false: more than the copy engine of these kernels can. Each
// library has one of the two: emulated_maps.cpp for kernels of C++, ptx_maps.cpp for PTX.
bool write_map(const TiledTensor& tensor, void* map);

}  // namespace mtl::host_cuda
