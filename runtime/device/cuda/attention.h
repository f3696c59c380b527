// What the attention kernels share: a call as a kernel sees it, where heads lie, dropout, and the
// statistics that backward needs per query.
//
// There are three paths. attention_rows.h takes any type, head_dim and alignment, a warp per row,
// on the CUDA cores. attention_tiles.h is for 16-bit types with tensor cores (mma): head_dim a
// multiple of 8 up to 256 and tensors aligned to 16 bytes. attention_panels.h is for most of these
// on Hopper, whose tensor cores give their full rate only to wgmma. All have the steps of arXiv
// 2205.14135 and 2307.08691 (online softmax, log-sum-exp saved, probabilities computed again in
// backward). Values narrower than keys are for the first two, and DeepSeek's for the third.
//
// Backward is two kernels with nothing to add up between blocks, so it is deterministic: one owns
// keys (dK, dV: four products per pair of tiles), one owns queries (dQ: three, of which the scores
// and dP are computed a second time). On Hopper it can be one, with 5 products instead of 7, whose
// blocks add dQ up one after the other (attention_query_sums.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "runtime/device/cuda/exponential.h"
#include "runtime/device/cuda/kernels.h"

namespace mtl::cuda {

using kernel_scratch::kMostQueries;

// Of one query: its log-sum-exp in units of log2 (infinite for padding, so that its probabilities
// are 0) and the sum of dO * O.
struct QueryStats {
  float lse2, delta;
};
// As they lie in memory, of queries 2 i and 2 i + 1: who needs the same of both, as dK and dV do,
// reads it in one go.
struct alignas(16) TwoStats {
  Pack<float, 2> lse2, delta;
};
static_assert(sizeof(TwoStats) == 2 * 8);  // as kernel_scratch::attention_stats() has it

struct AttentionWork {
  const void* qkv = nullptr;
  void* out = nullptr;  // backward reads it
  float* lse = nullptr;
  const void* dout = nullptr;
  void* dqkv = nullptr;
  // ALiBi: of the local heads, times log2(e); null without.
  const float* slopes = nullptr;
  const void* sinks = nullptr;  // forward: of the local heads, in the type of qkv; null without
  // What a query may not see at the other end: null and 0 without.
  const int32_t* first_key = nullptr;  // [batch, seq]
  int window = 0;
  TwoStats* stats = nullptr;  // backward: [batch, heads, stats_stride / 2]
  int64_t row_stride = 0, out_stride = 0, stats_stride = 0;
  int batch = 0, seq = 0, heads = 0, kv_heads = 0, group = 0, head_dim = 0, first_query = 0;
  int value_dim = 0;            // of values and results; not of keys
  float scale = 1, scale2 = 1;  // the second times log2(e)
  // With a cap: what the tanh is taken of is a score times `inner`, and scale2 is the cap's; else
  // 0.
  float inner = 0;
  // Dropout: kept iff the element's word is >= keep_from; 0 without.
  uint32_t keep_from = 0;
  float keep_scale = 1;
  EnqueuedMask dropout;
  uint64_t key = 0, first_element = 0;  // of the pass: know_pass()
  int first_head = 0, total_heads = 0;  // of the model's heads
};

// What a kernel that reads `key` or a HeadPlace's `first` begins with.
__device__ inline void know_pass(AttentionWork& w) {
  if (w.keep_from == 0) return;
  const Mask mask = mask_of(w.dropout);
  w.key = mask.key;
  w.first_element = mask.first;
}

// Where a (sequence, head) is.
struct HeadPlace {
  int64_t row;     // the first one of the sequence
  int head, kv;    // local
  int64_t of_all;  // b * heads + head
  uint64_t first;  // dropout's element of its first query and key
};
__device__ inline HeadPlace place_of(const AttentionWork& w, int b, int head) {
  const int64_t of_model = int64_t{b} * w.total_heads + w.first_head + head;
  return {int64_t{b} * w.seq, head, head / w.group, int64_t{b} * w.heads + head,
          w.first_element + static_cast<uint64_t>(of_model * w.seq * w.seq)};
}
// Of a head's query q on: an even one.
__host__ __device__ inline TwoStats* stats_from(const AttentionWork& w, int64_t of_all, int q) {
  return w.stats + (of_all * w.stats_stride + q) / 2;
}
__device__ inline QueryStats stats_of_query(const AttentionWork& w, int64_t of_all, int q) {
  const TwoStats* const two = stats_from(w, of_all, q - q % 2);
  return {two->lse2.at[q % 2], two->delta.at[q % 2]};
}
// Columns of qkv.
__device__ inline int64_t query_column(const AttentionWork& w, const HeadPlace& place) {
  return int64_t{place.head} * w.head_dim;
}
__device__ inline int64_t key_column(const AttentionWork& w, const HeadPlace& place) {
  return (int64_t{w.heads} + place.kv) * w.head_dim;
}
// Values are as wide as keys but where a kernel is compiled for `kNarrow` ones: their width takes a
// register, and most kernels have none left.
template <bool kNarrow = false>
__device__ inline int value_dim_of(const AttentionWork& w) {
  return kNarrow ? w.value_dim : w.head_dim;
}
template <bool kNarrow = false>
__device__ inline int64_t value_column(const AttentionWork& w, const HeadPlace& place) {
  if constexpr (kNarrow) {
    return (int64_t{w.heads} + w.kv_heads) * w.head_dim + int64_t{place.kv} * w.value_dim;
  }
  return (int64_t{w.heads} + w.kv_heads + place.kv) * w.head_dim;
}
// Column of out and dout.
template <bool kNarrow = false>
__device__ inline int64_t out_column(const AttentionWork& w, const HeadPlace& place) {
  return int64_t{place.head} * value_dim_of<kNarrow>(w);
}

// The first key that a query sees, of the sequence whose rows begin at `row`; it does not fall from
// one query to the next.
__device__ inline int first_seen(const AttentionWork& w, int64_t row, int q) {
  int first = w.first_key != nullptr ? w.first_key[row + q] : 0;
  if (w.window > 0) first = max(first, q - w.window + 1);
  return first;
}
// The queries that see a key k end before this one.
__device__ inline int end_of_seeing(const AttentionWork& w, int64_t row, int k) {
  int seeing = k, blind = w.seq;  // a key is seen by its own query
  while (blind - seeing > 1) {
    const int middle = seeing + (blind - seeing) / 2;
    if (first_seen(w, row, middle) <= k) {
      seeing = middle;
    } else {
      blind = middle;
    }
  }
  return blind;
}
__host__ __device__ inline bool is_limited(const AttentionWork& w) {
  return w.first_key != nullptr || w.window > 0;
}
// The score, in units of log2, of a key that a query does not see. Finite: where a query sees
// nothing of a tile, the sums from there are multiplied by 0 as soon as it meets a key that it
// sees, its own at the latest; and small enough that what rounding leaves of it less itself is
// about 1.
inline constexpr float kUnseen = -0x1p24f;

// The sink of a head in units of log2; without sinks what a softmax does not count. For when a
// query has seen its keys: a register for it until then is dearer than the load.
template <typename T>
__device__ inline float sink_of(const AttentionWork& w, int head) {
  return w.sinks != nullptr ? to_float(static_cast<const T*>(w.sinks)[head]) * kLog2e : -INFINITY;
}
// With it the largest score and the sum of a query's softmax, in units of log2, become what they
// are with a sink, whichever is the larger. Returns what the sum was multiplied by.
__device__ inline float count_sink(float sink, float& top, float& total) {
  const float new_top = fmaxf(top, sink);
  const float before = exp2_of(top - new_top);
  total = fmaf(total, before, exp2_of(sink - new_top));
  top = new_top;
  return before;
}

// --- dropout: four elements to a counter

__device__ inline bool is_kept(const AttentionWork& w, uint64_t element) {
  uint32_t words[4];
  philox(element / 4, w.key, words);
  const uint32_t low = (element & 1) != 0 ? words[1] : words[0];
  const uint32_t high = (element & 1) != 0 ? words[3] : words[2];
  return ((element & 2) != 0 ? high : low) >= w.keep_from;
}
// Bit i: whether element 4 * counter + i is kept.
__device__ inline uint32_t four_kept(const AttentionWork& w, uint64_t counter) {
  uint32_t words[4];
  philox(counter, w.key, words);
  const auto bit = [&](uint32_t word) { return word >= w.keep_from ? 1u : 0u; };
  return bit(words[0]) | bit(words[1]) << 1 | bit(words[2]) << 2 | bit(words[3]) << 3;
}

// --- host

// Writes the slopes of a call with ALiBi; they travel as the kernel's argument.
struct SlopeChunk {
  static constexpr int kCount = 256;
  float at[kCount];
};
template <typename = void>
__global__ void store_slopes(SlopeChunk chunk, int count, float* slopes) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < count) slopes[i] = chunk.at[i];
}

inline AttentionWork attention_work(const AttentionShape& s, const Tensor& qkv, const Tensor& out,
                                    const Tensor& lse) {
  AttentionWork w;
  w.qkv = qkv.data;
  w.out = out.data;
  w.lse = lse.as<float>();
  w.row_stride = qkv.cols();
  w.out_stride = out.cols();
  w.batch = static_cast<int>(s.batch);
  w.seq = static_cast<int>(s.seq);
  w.heads = static_cast<int>(s.heads);
  w.kv_heads = static_cast<int>(s.kv_heads);
  w.group = static_cast<int>(s.heads / s.kv_heads);
  w.head_dim = static_cast<int>(s.head_dim);
  w.value_dim = static_cast<int>(s.values());
  w.first_query = static_cast<int>(s.first_query);
  w.sinks = s.sinks.data;
  if (s.first_key) w.first_key = s.first_key.as<const int32_t>();
  w.window = static_cast<int>(std::min(s.window, s.seq));
  w.scale = s.scale;
  w.scale2 = s.scale * kLog2e;
  if (s.cap > 0) {
    w.inner = s.scale / s.cap;
    w.scale2 = s.cap * kLog2e;
  }
  if (s.dropout) {
    w.dropout = EnqueuedMask(s.dropout);
    w.keep_from = w.dropout.threshold;
    w.keep_scale = w.dropout.scale;
  }
  w.total_heads = static_cast<int>(s.total_heads);
  w.first_head = static_cast<int>(s.first_head);
  return w;
}

inline kernel_scratch::AttentionSize size_of(const AttentionWork& w) {
  return {w.batch, w.seq, w.heads, w.head_dim, w.value_dim};
}

// Enqueues the slopes of a call with ALiBi into `memory` (f32 [heads]).
inline void prepare_slopes(Queue& queue, const AttentionShape& s, AttentionWork& w, float* memory) {
  if (!s.alibi) return;
  w.slopes = memory;
  for (int first = 0; first < w.heads; first += SlopeChunk::kCount) {
    const int count = std::min(SlopeChunk::kCount, w.heads - first);
    SlopeChunk chunk = {};
    for (int i = 0; i < count; ++i) {
      chunk.at[i] = alibi_slope(s.first_head + first + i, s.total_heads) * kLog2e;
    }
    launch(store_slopes<>, dim3(1), dim3(SlopeChunk::kCount), 0, queue.stream(), chunk, count,
           memory + first);
  }
}

// What a block may have of shared memory: on every GPU from sm_80 on, and on this one.
inline constexpr size_t kLeastShared = size_t{99} << 10;
inline size_t most_shared_bytes() {
#if defined(__CUDACC__)
  int device = 0, bytes = 0;
  check(cudaGetDevice(&device), "the current device");
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "shared memory of a block");
  return static_cast<size_t>(bytes);
#else
  return gpu_on_host::most_shared_bytes;
#endif
}

inline bool aligned(const Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
}

}  // namespace mtl::cuda
