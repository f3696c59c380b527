// One head of causal attention at a time, on one thread: what attention.cpp distributes. One table
// per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mtl {

// Queries and keys are worked on in square blocks of this many.
constexpr int64_t kAttentionBlock = 64;

enum class AttentionType { f32, bf16, f16 };

// One (sequence, head) forward, or one (sequence, KV head) backward. Pointers are those of the
// first row of the sequence at the first column of the head; strides are in elements.
struct AttentionTask {
  AttentionType type = AttentionType::f32;  // of the elements of everything but lse
  bool tiles = false;                       // multiply with AMX (only with bf16)
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  int64_t qkv_stride = 0;
  void* out = nullptr;  // backward reads it
  int64_t out_stride = 0;
  float* lse = nullptr;                          // backward reads it
  int64_t seq = 0, head_dim = 0, value_dim = 0;  // value_dim: of v, out, dout and dv
  float scale = 1;
  // Dropout of element (q, k) of the first head: philox element `first_element` + q * seq + k.
  uint64_t keep_threshold = 0;  // kept iff the philox word is >= this; 0 = no dropout
  float keep_scale = 1;
  uint64_t key = 0, first_element = 0;
  // ALiBi: slopes of the query heads of this task, divided by `scale` (they are added to what
  // `scale` multiplies); null without.
  const float* slopes = nullptr;
  float cap = 0;  // of scaled scores; 0 = none
  // The score of no key that the softmax counts (of `type`); null: none. Not for backward.
  const void* sink = nullptr;
  // What a query may not see at the other end: keys before first_key[query] (ascending, at most the
  // query; null: none) and before query - window + 1 (0: none).
  const int32_t* first_key = nullptr;
  int64_t window = 0;
  // Forward only: the blocks of queries to compute.
  int64_t first_block = 0, last_block = 0;
  // Backward only: `group` query heads in a row share the KV head (q and dq advance by head_dim,
  // out and dout by value_dim, lse by seq, dropout elements by seq * seq).
  int64_t group = 1;
  const void* dout = nullptr;                        // stride out_stride
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;  // stride qkv_stride
  void* workspace = nullptr;                         // 64-byte aligned
};

struct AttentionKernels {
  size_t (*forward_workspace)(const AttentionTask&);
  size_t (*backward_workspace)(const AttentionTask&);
  void (*forward)(const AttentionTask&);
  void (*backward)(const AttentionTask&);
  // The gradient of the sink of one (sequence, head): `out`, `dout` and `lse` are read.
  float (*sink_gradient)(const AttentionTask&);
  // words[4 * i + w] = word w of philox4x32-10(counter = first + i, key), for i < 16.
  void (*philox16)(uint64_t first, uint64_t key, uint32_t* words);
};

namespace base {
extern const AttentionKernels kAttentionKernels;
}
namespace avx2 {
extern const AttentionKernels kAttentionKernels;
}
namespace avx512 {
extern const AttentionKernels kAttentionKernels;
}

}  // namespace mtl
