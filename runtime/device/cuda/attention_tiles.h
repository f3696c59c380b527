// Attention on tensor cores: the steps that forward, dQ and dK/dV are put together from.
//
// A block owns a tile of rows (queries, or keys in dK/dV), each warp 16 kM of them, and walks over
// tiles of the other side, which copy_async brings into two stages of shared memory:
//
//   wait for the copies of stage i; barrier; start copying stage i + 1; work on stage i
//
// The barrier does both things that are needed: stage i is seen by all, and all are done with stage
// i - 1, whose memory stage i + 1 takes. The block's own tile is copied along with stage 0.
//
// In shared memory a row has 16 bytes of padding, so that the 8 rows of a tile of load_tiles lie in
// different banks.
#pragma once

#include <type_traits>

#include "runtime/device/cuda/attention_order.h"
#include "runtime/device/cuda/attention_scores.h"

namespace mtl::cuda {

// Elements from a row of a tile to the next.
template <int kDim>
inline constexpr int kRowElements = kDim + 8;

// What a thread adds to a tile's address for load_tiles. `a`: 16 x 16 elements as operand A, or
// transposed as operand B of 16 rows by two octets of columns. `b`: not transposed as operand B,
// two octets of rows by 16 columns.
template <int kDim>
struct LaneOffsets {
  int a, b;
};
template <int kDim>
__device__ inline LaneOffsets<kDim> lane_offsets() {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  return {lane % 16 * kRowElements<kDim> + lane / 16 * 8,
          (lane % 8 + lane / 16 * 8) * kRowElements<kDim> + lane / 8 % 2 * 8};
}

// Starts copying rows [0, count) of a tensor into a tile; rows from `count` on and columns from
// head_dim on are zeros.
template <int kDim, int kRows, int kThreads, typename T>
__device__ inline void copy_tile(T* tile, const T* from, int64_t stride, int count, int head_dim) {
  constexpr int kPieces = kDim / 8, kStep = kThreads / kPieces;  // of rows that are copied at once
  const int thread = static_cast<int>(threadIdx.x);
  const int first = thread / kPieces, column = thread % kPieces * 8;
  if (kThreads % kPieces != 0 && first >= kStep) return;
  const T* row_from = from + first * stride + column;
  T* row_to = tile + first * kRowElements<kDim> + column;
  MTL_UNROLL(2)
  for (int row = first; row < kRows; row += kStep) {
    const bool valid = row < count && column < head_dim;
    copy_async(row_to, valid ? row_from : from, valid);
    row_from += kStep * stride;
    row_to += kStep * kRowElements<kDim>;
  }
}

// c[m][n] += A B^T over kDim: A is 16 kM rows, B 8 kN rows, both in shared memory (addresses with
// the lane's offset).
template <typename T, int kDim, int kM, int kN>
__device__ inline void multiply_rows(float (&c)[kM][kN][4], const T* a, const T* b) {
  MTL_UNROLL(2)
  for (int k = 0; k < kDim; k += 16) {
    uint32_t left[kM][4];
    MTL_UNROLL()
    for (int m = 0; m < kM; ++m) {
      load_tiles<false>(left[m], a + 16 * m * kRowElements<kDim> + k);
    }
    MTL_UNROLL()
    for (int n = 0; n < kN; n += 2) {
      uint32_t right[4];
      load_tiles<false>(right, b + 8 * n * kRowElements<kDim> + k);
      const uint32_t even[2] = {right[0], right[1]}, odd[2] = {right[2], right[3]};
      MTL_UNROLL()
      for (int m = 0; m < kM; ++m) {
        mma_m16n8k16<T>(c[m][n], left[m], even);
        mma_m16n8k16<T>(c[m][n + 1], left[m], odd);
      }
    }
  }
}

// c[m][n] += A B: A is 16 kM rows of 8 kN sums of an earlier product, B the 8 kN rows of a tile in
// shared memory (address with the lane's offset a).
template <typename T, int kDim, int kM, int kN>
__device__ inline void multiply_sums(float (&c)[kM][kDim / 8][4], const uint32_t (&sums)[kM][kN][2],
                                     const T* b) {
  MTL_UNROLL()
  for (int k = 0; k < kN; k += 2) {
    MTL_UNROLL()
    for (int n = 0; n < kDim / 8; n += 2) {
      uint32_t right[4];
      load_tiles<true>(right, b + 8 * k * kRowElements<kDim> + 8 * n);
      const uint32_t even[2] = {right[0], right[1]}, odd[2] = {right[2], right[3]};
      MTL_UNROLL()
      for (int m = 0; m < kM; ++m) {
        const uint32_t left[4] = {sums[m][k][0], sums[m][k][1], sums[m][k + 1][0],
                                  sums[m][k + 1][1]};
        mma_m16n8k16<T>(c[m][n], left, even);
        mma_m16n8k16<T>(c[m][n + 1], left, odd);
      }
    }
  }
}

// Writes 16 kM rows of sums, times `factor` of a row's half ([m][0]: row g, [m][1]: row g + 8),
// rounded to T: first into `tile`, a piece of shared memory that only this warp uses, then the
// first `count` rows of head_dim columns to the tensor, 16 bytes at a time.
template <typename T, int kDim, int kM>
__device__ inline void store_rows(const float (&c)[kM][kDim / 8][4], const float (&factor)[kM][2],
                                  T* tile, T* to, int64_t stride, int count, int head_dim) {
  const int lane = static_cast<int>(threadIdx.x % kWarp), g = lane / 4, t = lane % 4;
  __syncwarp();  // whoever has read the tile before
  MTL_UNROLL()
  for (int m = 0; m < kM; ++m) {
    MTL_UNROLL()
    for (int n = 0; n < kDim / 8; ++n) {
      MTL_UNROLL()
      for (int half = 0; half < 2; ++half) {
        const uint32_t both = pack_two<T>(c[m][n][2 * half] * factor[m][half],
                                          c[m][n][2 * half + 1] * factor[m][half]);
        *reinterpret_cast<uint32_t*>(tile + (16 * m + 8 * half + g) * kRowElements<kDim> + 8 * n +
                                     2 * t) = both;
      }
    }
  }
  __syncwarp();
  constexpr int kPieces = kDim / 8;
  for (int i = lane; i < 16 * kM * kPieces; i += static_cast<int>(kWarp)) {
    const int row = i / kPieces, column = i % kPieces * 8;
    if (row >= count || column >= head_dim) continue;
    *reinterpret_cast<uint4*>(to + row * stride + column) =
        *reinterpret_cast<const uint4*>(tile + row * kRowElements<kDim> + column);
  }
}

// What is compiled: whether queries see only the newer keys, which most calls do not need, and
// head_dim rounded up to one of these, with zeros.
template <typename Body>
void with_limits(const AttentionWork& w, Body body) {
  if (is_limited(w)) {
    body(std::true_type{});
  } else {
    body(std::false_type{});
  }
}
// Of heads beyond 128 there is the one kernel: they take the longest to compile.
template <int kDim, typename Body>
void with_tile_limits(const AttentionWork& w, Body body) {
  if constexpr (kDim > 128) {
    body(std::true_type{});
  } else {
    with_limits(w, body);
  }
}
template <typename Body>
void with_panel_dim(int head_dim, Body body) {
  if (head_dim <= 64) {
    body(std::integral_constant<int, 64>{});
  } else if (head_dim <= 96) {
    body(std::integral_constant<int, 96>{});
  } else {
    body(std::integral_constant<int, 128>{});
  }
}
// Values narrower than keys are for kernels of heads beyond 128 alone (attention.h says why).
template <int kDim>
inline constexpr bool kNarrowValues = kDim > 128;
// body(kDim, kValueDim): one pair is for DeepSeek's heads, of 192 elements with values of 128.
template <typename Body>
void with_tile_dims(const AttentionWork& w, Body body) {
  if (w.head_dim <= 128 && w.value_dim == w.head_dim) {
    with_panel_dim(w.head_dim, [&](auto dim) { body(dim, dim); });
  } else if (w.head_dim <= 192 && w.value_dim <= 128) {
    body(std::integral_constant<int, 192>{}, std::integral_constant<int, 128>{});
  } else {
    body(std::integral_constant<int, 256>{}, std::integral_constant<int, 256>{});
  }
}
inline bool fits_tiles(const AttentionShape& s) {
  return s.head_dim % 8 == 0 && s.values() % 8 == 0 && s.head_dim <= 256 && s.scale > 0;
}

}  // namespace mtl::cuda
