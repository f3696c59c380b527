// Attention on Hopper's tensor cores (attention_panels.h): for calls that fit the tiles of
// attention_tiles.h and have heads of exactly 64, 96 or 128, values as wide as keys; or (wide) of
// 192 with values of 128, or of 256.
#pragma once

#include "runtime/device/cuda/attention_tiles.h"

namespace mtl::cuda {

// Whether `queue`'s GPU has it, and a call of this form may take it. Backward of capped scores is
// one kernel where heads have 128.
inline bool fits_warpgroups(const Queue& queue, const AttentionShape& s, DType dtype) {
  if (!queue.has_warpgroups() || !(s.scale > 0)) return false;
  const bool takes = s.cap == 0 || (kernel_scratch::takes_caps(s.head_dim) &&
                                    kernel_scratch::adds_up(queue.hopper_backward(), s.head_dim));
  // A box of the copy engine is no higher than the tensor.
  return takes &&
         kernel_scratch::fits_warpgroups(dtype, {s.batch, s.seq, s.heads, s.head_dim, s.values()});
}

// The same of heads beyond 128.
inline bool fits_wide_warpgroups(const Queue& queue, const AttentionShape& s, DType dtype) {
  return queue.has_warpgroups() && s.scale > 0 &&
         (s.cap == 0 || kernel_scratch::takes_caps(s.head_dim)) &&
         kernel_scratch::fits_wide_warpgroups(dtype,
                                              {s.batch, s.seq, s.heads, s.head_dim, s.values()});
}

// Enqueue what attention_forward_tiles, and attention_key_tiles with attention_query_tiles, do.
// `scratch`: so many bytes, 16-byte aligned.
inline constexpr int64_t kForwardScratch = 16;
void forward_by_warpgroups(Queue& queue, const AttentionWork& w, DType dtype, void* scratch);
void backward_by_warpgroups(Queue& queue, const AttentionWork& w, DType dtype);
void wide_backward_by_warpgroups(Queue& queue, const AttentionWork& w, DType dtype);
// The same by one kernel, of heads of 64 and 128. `scratch` begins with kernel_scratch's
// query_sums().
void joint_backward_by_warpgroups(Queue& queue, const AttentionWork& w, DType dtype, void* scratch);

}  // namespace mtl::cuda
