// What the kernels that own keys share on Hopper: which tiles of queries a tile of keys meets.
#pragma once

#include "runtime/device/cuda/attention_panels.h"

namespace mtl::cuda::warpgroups {

// A tile of keys, and the tiles of queries that see it.
template <class Shape>
struct KeyTile {
  int index, first;  // within the head; its first key
  int sequence;
  HeadPlace place;  // of the first head of the group
  int last_tile, count;
};
template <class Shape, bool kLimited>
__device__ inline KeyTile<Shape> key_tile_of(const AttentionWork& w, const BlockOrder& order,
                                             int number) {
  // The first keys are seen by the most queries: they start first.
  const auto [head, index] = place_of_block(order, number);
  const int first = index * Shape::kKeys, sequence = head / w.kv_heads;
  const HeadPlace place = place_of(w, sequence, head % w.kv_heads * w.group);
  int queries_end = w.seq;
  if constexpr (kLimited) {
    queries_end = end_of_seeing(w, place.row, min(first + Shape::kKeys, w.seq) - 1);
  }
  const int last_tile = (queries_end - 1) / Shape::kQueries;
  return {index, first,     sequence,
          place, last_tile, (last_tile - first / Shape::kQueries + 1) * w.group};
}

// The producer's: keys, and values behind them, of each consumer own_bytes apart.
template <int kDim, class Shape>
__device__ inline void bring_key_tile(const AttentionWork& w, const KeyTile<Shape>& tile,
                                      const TensorMap& qkv, unsigned char* to, unsigned own_bytes,
                                      Barrier& full) {
  const int key_head = w.heads + tile.place.kv, value_head = key_head + w.kv_heads;
  arrive_expecting(full, 2 * kConsumers * Panels<kDim>::tile_bytes(kRows));
  for (int i = 0; i < kConsumers; ++i) {
    const int row = tile.first + i * kRows;
    unsigned char* const own = to + static_cast<unsigned>(i) * own_bytes;
    copy_rows<kDim, kRows>(own, qkv, full, key_head, row, tile.sequence);
    copy_rows<kDim, kRows>(own + kConsumers * own_bytes, qkv, full, value_head, row, tile.sequence);
  }
}
// And of a tile's queries from q on Q, dO and the statistics, into a stage of theirs.
template <int kDim, class Shape>
__device__ inline void bring_query_tile(const AttentionWork& w, const KeyTile<Shape>& tile,
                                        int member, int q, const TensorMap& qkv,
                                        const TensorMap& dout, unsigned char* queries,
                                        unsigned char* douts, TwoStats* stats, Barrier& full) {
  const int head = tile.place.head + member;
  copy_rows<kDim, Shape::kQueries>(queries, qkv, full, head, q, tile.sequence);
  copy_rows<kDim, Shape::kQueries>(douts, dout, full, head, q, tile.sequence);
  copy_bytes(stats, stats_from(w, tile.place.of_all + member, q), Shape::kStatsBytes, full);
}

// Of a tile of keys among those that add to dQ of the queries from q on: how many do so earlier,
// and whether none does later.
struct AddingOrder {
  int before;
  bool is_last;
};
template <class Shape, bool kLimited>
__device__ inline AddingOrder adding_order(const AttentionWork& w, const BlockOrder& order,
                                           int64_t row, int index, int q) {
  int first = 0;
  if constexpr (kLimited) first = first_seen(w, row, q) / Shape::kKeys;
  const int last = min((q + Shape::kQueries - 1) / Shape::kKeys, order.tiles - 1);
  return {index - first, index == last};
}

}  // namespace mtl::cuda::warpgroups
