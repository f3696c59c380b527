// Which head and tile of it a block of an attention kernel has.
//
// Blocks start in the order of their index, which CUDA does not promise and only speed rests on.
// The tiles with the most work go first, so that the last blocks to run are short ones. Were each
// head's longest tile taken before any head's second one, what a head's tiles share (K and V, or Q
// and dO) would be gone from the level-2 cache when the next of them comes: the 384 heads of 32
// sequences of GPT-2 have 100 MB, an H200's cache 50 MB, and of memory, tiles of 128 queries would
// want a byte for 128 FLOPs, 4 TB/s at half of its peak. So heads are taken in sections that fit
// into the cache, one after the other.
#pragma once

#include "runtime/device/cuda/attention.h"

namespace mtl::cuda {

struct BlockOrder {
  int heads = 0;    // of all sequences
  int tiles = 0;    // of a head; a block each, but where blocks take several
  int section = 1;  // heads, but in the last one
};
struct BlockPlace {
  int head, tile;  // tile 0 of a head starts first
};
__host__ __device__ inline BlockPlace place_of_block(const BlockOrder& order, int block) {
  const int first = block / (order.tiles * order.section) * order.section;
  const int heads = min(order.section, order.heads - first);
  const int in_section = block - first * order.tiles;
  return {first + in_section % heads, in_section / heads};
}

// --- host

inline int64_t level2_bytes() {
#if defined(__CUDACC__)
  int device = 0, bytes = 0;
  check(cudaGetDevice(&device), "the current device");
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device), "the level-2 cache");
  return bytes;
#else
  return gpu_on_host::level2_bytes;
#endif
}

// Groups of `group` heads, one beside the other, share `shared_bytes`. Sections of about the same
// size: a small one at the end would leave multiprocessors without work. At least `least` groups.
inline BlockOrder block_order(int64_t heads, int64_t tiles, int64_t group, int64_t shared_bytes,
                              int64_t least = 1) {
  const int64_t groups = (heads + group - 1) / group;
  // Half of it: an H100's is two that keep what their own multiprocessors read.
  const int64_t fit = std::max(std::max<int64_t>(1, least), level2_bytes() / 2 / shared_bytes);
  const int64_t sections = (groups + fit - 1) / fit;
  return {static_cast<int>(heads), static_cast<int>(tiles),
          static_cast<int>((groups + sections - 1) / sections * group)};
}
inline int64_t bytes_of_two(const AttentionWork& w) {  // K and V of a head, or Q and dO
  return int64_t{w.head_dim + w.value_dim} * w.seq * static_cast<int64_t>(sizeof(uint16_t));
}
// Of blocks that own so many queries each, from first_query's on: heads of a group read one K, V.
inline BlockOrder order_of_queries(const AttentionWork& w, int queries) {
  const int tiles = (w.seq + queries - 1) / queries - w.first_query / queries;
  return block_order(int64_t{w.batch} * w.heads, tiles, w.group, bytes_of_two(w));
}
// Of blocks that own so many keys each: they read Q and dO of their group's heads.
inline BlockOrder order_of_keys(const AttentionWork& w, int keys) {
  return block_order(int64_t{w.batch} * w.kv_heads, (w.seq + keys - 1) / keys, 1,
                     bytes_of_two(w) * w.group);
}
// Of blocks that add to dQ as well, 4 bytes an element. A head's blocks go side by side, so half of
// that at a time. They wait for one another where they start together (attention_query_sums.h): the
// fewer of a head, the better.
inline BlockOrder order_of_joint_keys(const Queue& queue, const AttentionWork& w, int keys) {
  return block_order(int64_t{w.batch} * w.kv_heads, (w.seq + keys - 1) / keys, 1,
                     bytes_of_two(w) * w.group, queue.multiprocessors() / 32);
}
inline dim3 grid_of(const BlockOrder& order) {
  return dim3(static_cast<unsigned>(int64_t{order.heads} * order.tiles));
}

}  // namespace mtl::cuda
