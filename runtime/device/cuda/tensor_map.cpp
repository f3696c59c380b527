// Tensor maps for the copy engine (warpgroup.h), by the driver: it is asked for at run time, since
// this library links without one.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "common/error.h"
#include "runtime/device/cuda/cuda_errors.h"
#include "runtime/device/cuda/warpgroup.h"

namespace mtl::cuda {

namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode encode() {
  static const Encode found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result = {};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                           cudaEnableDefault, &result),
          "the driver's tensor maps");
    if (result != cudaDriverEntryPointSuccess) {
      check(cudaErrorCallRequiresNewerDriver, "the driver's tensor maps");
    }
    return reinterpret_cast<Encode>(function);
  }();
  return found;
}

}  // namespace

TensorMap tensor_map(const HeadsTensor& t) {
  constexpr int kRank = 4;  // dim, head, row, sequence
  const auto bytes = [](int64_t elements) { return static_cast<cuuint64_t>(2 * elements); };
  const cuuint64_t sizes[kRank] = {static_cast<cuuint64_t>(t.dim), static_cast<cuuint64_t>(t.heads),
                                   static_cast<cuuint64_t>(t.seq),
                                   static_cast<cuuint64_t>(t.batch)};
  const cuuint64_t strides[kRank - 1] = {bytes(t.dim), bytes(t.row_stride),
                                         bytes(t.seq * t.row_stride)};
  const cuuint32_t box[kRank] = {static_cast<cuuint32_t>(t.panel), 1,
                                 static_cast<cuuint32_t>(t.rows), 1};
  const cuuint32_t steps[kRank] = {1, 1, 1, 1};
  TensorMap map;
  static_assert(sizeof map == sizeof(CUtensorMap));
  const CUresult result = encode()(
      reinterpret_cast<CUtensorMap*>(&map),
      t.is_bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, kRank,
      const_cast<void*>(t.data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      t.panel == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) check(cudaErrorInvalidValue, "a tensor map");
  return map;
}

}  // namespace mtl::cuda
