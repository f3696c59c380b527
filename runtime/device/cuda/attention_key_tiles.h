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

// --- host

template <typename T, int kDim>
TensorMap map_of_dout(const AttentionWork& w) {
  return tensor_map({.data = w.dout,
                     .batch = w.batch,
                     .seq = w.seq,
                     .heads = w.heads,
                     .dim = w.head_dim,
                     .row_stride = w.out_stride,
                     .is_bf16 = kIsBf16<T>,
                     .rows = kBoxRows,
                     .panel = Panels<kDim>::kPanel});
}

}  // namespace mtl::cuda::warpgroups
