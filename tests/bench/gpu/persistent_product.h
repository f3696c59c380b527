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
// A block makes tiles of 128 x 256 of D; a cluster of two, below each other, shares what it reads
// of B. `lead`: steps of k that one half of a block is ahead of the other.
struct ProductForm {
  int cluster = 1, lead = 0;
};
inline constexpr ProductForm kProductForms[] = {{1, 0}, {2, 0}, {2, 1}, {2, 2}};

// Enqueues it, in one of these forms. Throws Error "device.cuda".
void enqueue(const PersistentProduct& product, const ProductForm& form, cudaStream_t stream);

}  // namespace mtl::bench
