// The one function of CUDA's driver that mtl asks for, with the rules of its documentation ("CUDA
// Driver API", Tensor Map Object Management).
#include "host_cuda/tensor_maps.h"

#include <algorithm>
#include <cstring>
#include <cuda.h>
#include <cuda_runtime_api.h>

namespace {

// Tiles of 16-bit elements alone, four dimensions, in panels of 128 or 64 bytes.
CUresult encode(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                const cuuint32_t* steps, CUtensorMapInterleave interleave,
                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  bool fits =
      reinterpret_cast<uintptr_t>(address) % 16 == 0 && address != nullptr && rank == 4 &&
      (type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 || type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16) &&
      interleave == CU_TENSOR_MAP_INTERLEAVE_NONE && fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
  for (cuuint32_t i = 0; fits && i < rank; ++i) {
    fits = sizes[i] >= 1 && sizes[i] <= uint64_t{1} << 32 && box[i] >= 1 && box[i] <= 256 &&
           steps[i] == 1;
  }
  for (cuuint32_t i = 0; fits && i + 1 < rank; ++i) {
    fits = strides[i] % 16 == 0 && strides[i] >= sizes[i] && strides[i] < uint64_t{1} << 40;
  }
  const uint32_t swizzle_bytes = swizzle == CU_TENSOR_MAP_SWIZZLE_128B  ? 128
                                 : swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 64
                                                                        : 0;
  fits = fits && 2 * box[0] % 16 == 0 && 2 * box[0] <= swizzle_bytes;
  if (!fits) return CUDA_ERROR_INVALID_VALUE;
  mtl::host_cuda::TiledTensor tensor;
  tensor.data = static_cast<const unsigned char*>(address);
  std::copy_n(sizes, 4, tensor.sizes);
  std::copy_n(strides, 3, tensor.strides);
  std::copy_n(box, 4, tensor.box);
  tensor.swizzle_bytes = swizzle_bytes;
  return write_map(tensor, map) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function,
                                                        unsigned version, unsigned long long,
                                                        cudaDriverEntryPointQueryResult* result) {
  const bool known = std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0 && version >= 12000;
  *function = known ? reinterpret_cast<void*>(encode) : nullptr;
  *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
