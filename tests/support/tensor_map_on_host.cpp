// cuda::tensor_map where there is no CUDA to ask a driver with (tests/host_cuda/tensor_maps.cpp is
// the driver where there is).
#include <stdexcept>
#include <string>

#include "runtime/device/cuda/warpgroup.h"

namespace mtl::cuda {

TensorMap tensor_map(const HeadsTensor& tensor) {
  const auto refuse = [](const char* what) {
    throw std::runtime_error(std::string("a tensor that the copy engine does not take: ") + what);
  };
  const auto aligned = [](int64_t elements) { return 2 * elements % 16 == 0; };
  if (tensor.data == nullptr || reinterpret_cast<uintptr_t>(tensor.data) % 16 != 0) {
    refuse("its address is no multiple of 16");
  }
  for (const int64_t size : {tensor.batch, tensor.seq, tensor.heads, tensor.dim}) {
    if (size < 1 || size > int64_t{1} << 32) refuse("a dimension is not from 1 to 2^32");
  }
  if (!aligned(tensor.dim) || !aligned(tensor.row_stride)) refuse("a stride is no multiple of 16");
  if (tensor.row_stride < 1 || tensor.row_stride >= (int64_t{1} << 39) / tensor.seq) {
    refuse("a stride is not from 1 to 2^40 bytes");
  }
  if (tensor.rows < 1 || tensor.rows > 256) refuse("a box has not 1 to 256 rows");
  if (tensor.panel != 64 && tensor.panel != 32) refuse("a panel has neither 64 nor 32 columns");
  return {static_cast<const unsigned char*>(tensor.data),
          tensor.batch,
          tensor.seq,
          tensor.heads,
          tensor.dim,
          tensor.row_stride,
          tensor.rows,
          tensor.panel};
}

}  // namespace mtl::cuda
