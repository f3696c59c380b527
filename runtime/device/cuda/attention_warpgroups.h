// Attention on Hopper's tensor cores (attention_panels.h): for calls that fit the tiles of
// attention_tiles.h and have heads of exactly 64, 96 or 128.
#pragma once

#include "runtime/device/cuda/attention_tiles.h"

namespace mtl::cuda {

// Whether `queue`'s GPU has it, and a call of this form may take it.
inline bool fits_warpgroups(const Queue& queue, const AttentionShape& s, DType dtype) {
  const bool compiled = s.head_dim == 64 || s.head_dim == 96 || s.head_dim == 128;
  // A box of the copy engine is no higher than the tensor.
  return queue.has_warpgroups() && dtype != DType::f32 && compiled && s.scale > 0 && s.seq >= 32;
}

// Enqueue what attention_forward_tiles, and attention_key_tiles with attention_query_tiles, do.
// `scratch`: so many bytes, 16-byte aligned.
inline constexpr size_t kForwardScratch = 16;
void forward_by_warpgroups(Queue& queue, const AttentionWork& w, DType dtype, void* scratch);
size_t backward_scratch_of_warpgroups(const Queue& queue, const AttentionWork& w);
void backward_by_warpgroups(Queue& queue, const AttentionWork& w, DType dtype, void* scratch);

}  // namespace mtl::cuda
