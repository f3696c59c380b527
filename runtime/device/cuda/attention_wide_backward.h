// What the backward of heads beyond 128 is put together from on Hopper, beside attention_panels.h:
// DeepSeek's heads, of 192 elements with values of 128, and Gemma's, of 256.
#pragma once

#include "runtime/device/cuda/attention_key_tiles.h"
#include "runtime/device/cuda/attention_warpgroups.h"

namespace mtl::cuda {

namespace wide_backward {

using namespace warpgroups;

inline constexpr int kPanel = 64;  // columns; all these widths are multiples

// copy_rows by boxes of kBox rows.
template <int kDim, int kTileRows, int kBox>
__device__ inline void copy_boxes(unsigned char* tile, const TensorMap& map, Barrier& barrier,
                                  int head, int row, int sequence) {
  using Tile = Panels<kDim>;
  static_assert(kTileRows % kBox == 0 && Tile::kPanel == kPanel);
  MTL_UNROLL(1)
  for (int panel = 0; panel < Tile::kCount; ++panel) {
    MTL_UNROLL(1)
    for (int first = 0; first < kTileRows; first += kBox) {
      copy_box(tile + panel * Tile::panel_bytes(kTileRows) + first * Tile::kRowBytes, map, barrier,
               panel * kPanel, head, row + first, sequence);
    }
  }
}

template <int kN>
__device__ inline void clear_sums(float (&c)[kN][4]) {
  clear(reinterpret_cast<float(&)[1][kN][4]>(c));
}

// multiply_sums of as many columns as two products have together.
template <typename T, int kDim, int kN>
__device__ inline void add_sums(float (&c)[kDim / 8][4], uint32_t (&sums)[kN][2], uint32_t b) {
  if constexpr (kDim <= 128) {
    multiply_sums<T, kDim>(c, sums, b);
  } else {
    constexpr unsigned kPanelBytes = Panels<kDim>::panel_bytes(8 * kN);
    constexpr int kHalf = 16, kRest = kDim / 8 - kHalf;
    auto& left_sums = reinterpret_cast<float(&)[kHalf][4]>(c[0]);
    auto& right_sums = reinterpret_cast<float(&)[kRest][4]>(c[kHalf]);
    const uint64_t right = columns_operand<kPanel>(b, kPanelBytes);
    hold(sums);
    products_begin();
    MTL_UNROLL()
    for (int k = 0; k < kN; k += 2) {
      const uint32_t left[4] = {sums[k][0], sums[k][1], sums[k + 1][0], sums[k + 1][1]};
      const unsigned rows = static_cast<unsigned>(8 * k) * Panels<kDim>::kRowBytes;
      multiply_registers<T>(left_sums, left, descriptor::behind(right, rows), true);
      multiply_registers<T>(right_sums, left,
                            descriptor::behind(right, kHalf * 8 / kPanel * kPanelBytes + rows),
                            true);
    }
    products_issued();
  }
}

// Writes a consumer's 64 rows times `factor`, the first of which is row `first` of the sequence.
// `room`: 8 KB that all its warps are done with.
template <typename T, int kDim>
__device__ inline void store_panels(const AttentionWork& w, const Consumer& consumer,
                                    const float (&c)[kDim / 8][4], float factor,
                                    unsigned char* room, T* to, int first) {
  const int row = first + 16 * consumer.warp;
  if (row >= w.seq) return;
  MTL_UNROLL()
  for (int column = 0; column < kDim; column += kPanel) {
    store_octets(c + column / 8, factor, room + consumer.warp * 2048,
                 to + row * w.row_stride + column, w.row_stride, w.seq - row);
  }
}

// The tiles of queries of a tile of keys, one after the other.
struct QueryStep {
  int member, tile;
  __device__ void advance(int group) {
    if (++member < group) return;
    member = 0;
    --tile;
  }
};

// --- host

// Q with K, V, and dO.
struct WideMaps {
  TensorMap qk, v, dout;
};
template <typename T>
WideMaps wide_maps(const AttentionWork& w, int rows) {
  return {map_of_keys<T, kPanel>(w, rows), map_of_values<T, kPanel>(w, rows),
          map_of_dout<T, kPanel>(w, rows)};
}

}  // namespace wide_backward

// Enqueues dK and dV of heads of 256.
void paired_keys_by_warpgroups(Queue& queue, const AttentionWork& w, DType dtype);

}  // namespace mtl::cuda
