#include <cstring>

#include "host_cuda/tensor_maps.h"
#include "support/warpgroup_on_host.h"

namespace mtl::host_cuda {

// Heads side by side, sequences one behind the other.
bool write_map(const TiledTensor& tensor, void* map) {
  if (2 * tensor.box[0] != tensor.swizzle_bytes || tensor.box[1] != 1 || tensor.box[3] != 1 ||
      tensor.strides[0] != 2 * tensor.sizes[0] ||
      tensor.strides[2] != tensor.sizes[2] * tensor.strides[1]) {
    return false;
  }
  gpu_on_host::TensorMap made;
  made.data = tensor.data;
  made.dim = static_cast<int64_t>(tensor.sizes[0]);
  made.heads = static_cast<int64_t>(tensor.sizes[1]);
  made.seq = static_cast<int64_t>(tensor.sizes[2]);
  made.batch = static_cast<int64_t>(tensor.sizes[3]);
  made.row_stride = static_cast<int64_t>(tensor.strides[1] / 2);
  made.rows = static_cast<int>(tensor.box[2]);
  made.panel = static_cast<int>(tensor.box[0]);
  std::memcpy(map, &made, sizeof made);
  return true;
}

}  // namespace mtl::host_cuda
