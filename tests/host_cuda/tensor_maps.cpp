// The one function of CUDA's driver that mtl asks for, with the rules of its documentation ("CUDA
// Driver API", Tensor Map Object Management): what the copy engine of support/warpgroup_on_host.h
// is told.
#include <cstring>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "support/warpgroup_on_host.h"

namespace {

using mtl::gpu_on_host::TensorMap;

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
  const uint32_t panel_bytes = swizzle == CU_TENSOR_MAP_SWIZZLE_128B  ? 128
                               : swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 64
                                                                      : 0;
  // More than the emulated engine can: heads side by side, sequences one behind the other.
  fits = fits && 2 * box[0] == panel_bytes && box[1] == 1 && box[3] == 1 &&
         strides[0] == 2 * sizes[0] && strides[2] == sizes[2] * strides[1];
  if (!fits) return CUDA_ERROR_INVALID_VALUE;
  TensorMap made;
  made.data = static_cast<const unsigned char*>(address);
  made.dim = static_cast<int64_t>(sizes[0]);
  made.heads = static_cast<int64_t>(sizes[1]);
  made.seq = static_cast<int64_t>(sizes[2]);
  made.batch = static_cast<int64_t>(sizes[3]);
  made.row_stride = static_cast<int64_t>(strides[1] / 2);
  made.rows = static_cast<int>(box[2]);
  made.panel = static_cast<int>(box[0]);
  std::memcpy(map, &made, sizeof made);
  return CUDA_SUCCESS;
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
