// A product of our own for Hopper, to hold against cuBLASLt's under the limit of a GPU's power
// (own_product_gpu.cpp). Nothing else calls it.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

namespace mtl::bench {

// D[m, n] = A[m, k] B[n, k]^T in bf16 with f32 sums, all row-major without gaps, 16-byte aligned;
// k a multiple of 64. Rows and columns beyond m and n are not written.
struct PersistentProduct {
  int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  void* d = nullptr;
};
// Blocks that share what they read. A block makes tiles of 128 x 256 of D, a cluster rows x columns
// of them: blocks beside each other share A, those one below the other B.
struct ClusterForm {
  int rows = 1, columns = 1;
};
inline constexpr ClusterForm kClusterForms[] = {{1, 1}, {2, 1}, {2, 2}};

// Enqueues it, in one of these forms. Throws Error "device.cuda".
void enqueue(const PersistentProduct& product, const ClusterForm& form, cudaStream_t stream);

}  // namespace mtl::bench
