#include <algorithm>
#include <cstring>

#include "host_cuda/tensor_maps.h"
#include "ptx/tensor_map.h"

namespace mtl::host_cuda {

bool write_map(const TiledTensor& tensor, void* map) {
  ptx::TensorMap made;
  made.base = tensor.data;
  std::copy_n(tensor.sizes, 4, made.sizes);
  std::copy_n(tensor.strides, 3, made.strides);
  std::copy_n(tensor.box, 4, made.box);
  made.element_bytes = 2;
  made.swizzle_bytes = tensor.swizzle_bytes;
  std::memcpy(map, &made, sizeof made);
  return true;
}

}  // namespace mtl::host_cuda
