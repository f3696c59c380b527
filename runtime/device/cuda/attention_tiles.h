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
// Scores and probabilities never leave registers: the sums of one product have the layout that
// operand A of the next one needs (gpu.h has both). In shared memory a row has 16 bytes of padding,
// so that the 8 rows of a tile of load_tiles lie in different banks.
#pragma once

#include <type_traits>

#include "runtime/device/cuda/attention.h"

namespace mtl::cuda {

// Two f32 as operands, the first in the lower half.
template <typename T>
__device__ inline uint32_t pack_two(float low, float high) {
  return from_float<T>(low).bits | static_cast<uint32_t>(from_float<T>(high).bits) << 16;
}
#if defined(__CUDACC__)
template <>
__device__ inline uint32_t pack_two<Bf16>(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return static_cast<uint32_t>(__bfloat16_as_ushort(both.x)) |
         static_cast<uint32_t>(__bfloat16_as_ushort(both.y)) << 16;
}
template <>
__device__ inline uint32_t pack_two<Half>(float low, float high) {
  const __half2 both = __floats2half2_rn(low, high);
  return static_cast<uint32_t>(__half_as_ushort(both.x)) |
         static_cast<uint32_t>(__half_as_ushort(both.y)) << 16;
}
#endif

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

// Sums [n] of a product, rounded: [n][half] as operand A has them.
template <int kM, int kN>
using PackedSums = uint32_t[kM][kN][2];

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

template <int kM, int kN>
__device__ inline void clear(float (&c)[kM][kN][4]) {
  MTL_UNROLL()
  for (int m = 0; m < kM; ++m) {
    MTL_UNROLL()
    for (int n = 0; n < kN; ++n) {
      MTL_UNROLL()
      for (int i = 0; i < 4; ++i) c[m][n][i] = 0;
    }
  }
}

// Scores, in units of 1 / factor of log2, of 16 kM queries and 8 kN keys, the first of which for
// this lane are `distance` (key - query) apart: ALiBi, and what a query may not see. Returns the
// factor.
template <int kM, int kN>
__device__ inline float finish_scores(const AttentionWork& w, float slope, float (&s)[kM][kN][4],
                                      int distance, bool diagonal) {
  MTL_UNROLL()
  for (int m = 0; m < kM; ++m) {
    MTL_UNROLL()
    for (int n = 0; n < kN; ++n) {
      MTL_UNROLL()
      for (int i = 0; i < 4; ++i) {
        const int more = 8 * n + i % 2 - (16 * m + i / 2 * 8);
        if (w.slopes != nullptr) {
          const float bias = slope * static_cast<float>(distance + more);
          s[m][n][i] = fmaf(s[m][n][i], w.scale2, bias);
        }
        if (diagonal && distance > -more) s[m][n][i] = -INFINITY;
      }
    }
  }
  return w.slopes != nullptr ? 1.0f : w.scale2;
}

// Hides what queries do not see at the other end, of 16 kM rows of queries and 8 kN columns of
// keys, of which `q` and `k` are this lane's first ones. `factor`: what the scores are multiplied
// by next.
template <int kM, int kN>
__device__ inline void hide_keys(const AttentionWork& w, int64_t row, float (&s)[kM][kN][4], int q,
                                 int k, float factor) {
  const float unseen = kUnseen / factor;
  MTL_UNROLL()
  for (int m = 0; m < kM; ++m) {
    MTL_UNROLL()
    for (int half = 0; half < 2; ++half) {
      const int low = first_seen(w, row, min(q + 16 * m + 8 * half, w.seq - 1));
      MTL_UNROLL()
      for (int n = 0; n < kN; ++n) {
        MTL_UNROLL()
        for (int i = 0; i < 2; ++i) {
          if (k + 8 * n + i < low) s[m][n][2 * half + i] = unseen;
        }
      }
    }
  }
}

// Which of the elements that a thread has of a product's sums are kept: bit 4 n + i for sums [n][i]
// of 16 rows, whose first row and column are element `first`. kQueryRows: rows are queries and
// columns keys, else the other way round. Where the sequence is a multiple of 4, the four keys of a
// counter belong to neighbouring lanes, and each of these computes another counter for all of them.
template <bool kQueryRows, int kN>
__device__ inline uint32_t kept_of_sums(const AttentionWork& w, uint64_t first) {
  static_assert(kN <= 8);
  const uint32_t lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const auto seq = static_cast<uint64_t>(w.seq);
  uint32_t bits = 0;
  MTL_UNROLL(1)
  for (uint32_t n = 0; n < kN; ++n) {
    uint32_t four = 0;
    if (w.seq % 4 != 0) {
      MTL_UNROLL(1)
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t row = g + i / 2 * 8, column = 8 * n + 2 * t + i % 2;
        const uint64_t element =
            kQueryRows ? first + row * seq + column : first + column * seq + row;
        four |= (is_kept(w, element) ? 1u : 0u) << i;
      }
    } else if constexpr (kQueryRows) {
      // Lanes 2j and 2j + 1 of a row's four: rows g and g + 8.
      const uint32_t mine = t % 2, row = g + 8 * mine, column = 8 * n + t / 2 * 4;
      uint32_t both = four_kept(w, (first + row * seq + column) / 4) << (4 * mine);
      both |= __shfl_xor_sync(kAllLanes, both, 1);
      both >>= 2 * mine;
      four = (both & 3) | (both >> 4 & 3) << 2;
    } else {
      // Lanes with the same g / 4 and t: the four sums [i].
      const uint32_t mine = g % 4, row = mine / 2 * 8 + g / 4 * 4;
      const uint32_t column = 8 * n + 2 * t + mine % 2;
      uint32_t all = four_kept(w, (first + column * seq + row) / 4) << (4 * mine);
      all |= __shfl_xor_sync(kAllLanes, all, 4);
      all |= __shfl_xor_sync(kAllLanes, all, 8);
      all >>= mine;
      four = (all & 1) | (all >> 4 & 1) << 1 | (all >> 8 & 1) << 2 | (all >> 12 & 1) << 3;
    }
    bits |= four << (4 * n);
  }
  return bits;
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

// What is compiled: head_dim rounded up to one of these, with zeros.
// And whether queries see only the newer keys: what most calls do not need is not in their kernels.
template <typename Body>
void with_limits(const AttentionWork& w, Body body) {
  if (is_limited(w)) {
    body(std::true_type{});
  } else {
    body(std::false_type{});
  }
}
template <typename Body>
void with_tile_dim(int head_dim, Body body) {
  if (head_dim <= 64) {
    body(std::integral_constant<int, 64>{});
  } else if (head_dim <= 96) {
    body(std::integral_constant<int, 96>{});
  } else {
    body(std::integral_constant<int, 128>{});
  }
}
inline bool fits_tiles(const AttentionShape& s) {
  return s.head_dim % 8 == 0 && s.head_dim <= 128 && s.scale > 0;
}

}  // namespace mtl::cuda
