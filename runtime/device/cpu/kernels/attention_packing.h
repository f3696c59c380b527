// A block of rows of a head in memory -> the operands of attention_gemm.h: at most 64 rows of
// [.., dim] become zero-padded blocks of 64 x D, D a multiple of 32, in four forms. f16, and bf16
// without AMX, are widened on the way.
#pragma once

#include "common/half.h"
#include "runtime/device/cpu/kernels/attention_kernels.h"
#include "runtime/device/cpu/kernels/matmul_math.h"

namespace mtl {
namespace {

constexpr int64_t kB = kAttentionBlock;

inline int64_t blocks_of(int64_t seq) {
  return (seq + kB - 1) / kB;
}
inline int64_t padded(int64_t dim) {
  return (dim + 31) / 32 * 32;
}

inline float load(const float* p) {
  return *p;
}
inline float load(const uint16_t* p) {
  return bf16_to_f32(*p);
}
inline float load(const _Float16* p) {
  return f16_to_f32(__builtin_bit_cast(uint16_t, *p));
}
inline void store(float* p, float x) {
  *p = x;
}
inline void store(uint16_t* p, float x) {
  *p = f32_to_bf16(x);
}
inline void store(_Float16* p, float x) {
  *p = __builtin_bit_cast(_Float16, f32_to_f16(x));
}
inline void convert(const float* from, float* to) {
  *to = *from;
}
inline void convert(const uint16_t* from, uint16_t* to) {
  *to = *from;
}
inline void convert(const uint16_t* from, float* to) {
  *to = load(from);
}
inline void convert(const _Float16* from, float* to) {
  *to = load(from);
}

// As operand A: [64][D].
template <typename S, typename P>
void pack_rows(const S* from, int64_t stride, int64_t rows, int64_t dim, int64_t D, P* to) {
  for (int64_t r = 0; r < kB; ++r) {
    P* row = to + r * D;
    const int64_t n = r < rows ? dim : 0;
    for (int64_t d = 0; d < n; ++d) convert(from + r * stride + d, row + d);
    for (int64_t d = n; d < D; ++d) row[d] = 0;
  }
}

// Transposed as operand A: [D][64].
template <typename S, typename P>
void pack_columns(const S* from, int64_t stride, int64_t rows, int64_t dim, int64_t D, P* to) {
  if (rows < kB || dim < D) __builtin_memset(to, 0, static_cast<size_t>(D * kB) * sizeof(P));
  for (int64_t r = 0; r < rows; ++r) {
    const S* row = from + r * stride;
    for (int64_t d = 0; d < dim; ++d) convert(row + d, to + d * kB + r);
  }
}

// As operand B: [64][D], pairs of rows interleaved for the tiles.
template <typename S>
void pack_b(const S* from, int64_t stride, int64_t rows, int64_t dim, int64_t D, float* to) {
  pack_rows(from, stride, rows, dim, D, to);
}
[[maybe_unused]] inline void pack_b(const uint16_t* from, int64_t stride, int64_t rows, int64_t dim,
                                    int64_t D, uint16_t* __restrict to) {
  for (int64_t r = 0; r < kB; r += 2) {
    uint16_t* pair = to + r * D;
    const uint16_t* even = from + r * stride;
    const uint16_t* odd = even + stride;
    const int64_t n = r < rows ? dim : 0;
    if (r + 1 < rows) {
      for (int64_t d = 0; d < n; ++d) {
        pair[2 * d] = even[d];
        pair[2 * d + 1] = odd[d];
      }
    } else {
      for (int64_t d = 0; d < n; ++d) {
        pair[2 * d] = even[d];
        pair[2 * d + 1] = 0;
      }
    }
    for (int64_t d = 2 * n; d < 2 * D; ++d) pair[d] = 0;
  }
}

// Transposed as operand B: [D][64], pairs of rows (here: of dimensions) interleaved for the tiles.
template <typename S>
void pack_b_transposed(const S* from, int64_t stride, int64_t rows, int64_t dim, int64_t D,
                       float* to) {
  pack_columns(from, stride, rows, dim, D, to);
}
[[maybe_unused]] inline void pack_b_transposed(const uint16_t* from, int64_t stride, int64_t rows,
                                               int64_t dim, int64_t D, uint16_t* to) {
  if (rows < kB || dim < D) __builtin_memset(to, 0, static_cast<size_t>(D * kB) * sizeof(*to));
  for (int64_t r = 0; r < rows; ++r) {
    const uint16_t* row = from + r * stride;
    for (int64_t d = 0; d + 1 < dim; d += 2) {
      uint32_t pair;
      __builtin_memcpy(&pair, row + d, 4);
      __builtin_memcpy(to + (d * kB + 2 * r), &pair, 4);
    }
    if (dim % 2 != 0) to[(dim - 1) * kB + 2 * r] = row[dim - 1];
  }
}

// Two rows of probabilities (keys r, r+1) as operand B.
inline void store_b(const float* even, const float* odd, float* to) {
  for (int64_t c = 0; c < kB; ++c) to[c] = even[c];
  for (int64_t c = 0; c < kB; ++c) to[kB + c] = odd[c];
}
inline void store_b(const float* even, const float* odd, uint16_t* to) {
  uint32_t* pairs = reinterpret_cast<uint32_t*>(to);
  for (int64_t c = 0; c < kB; ++c) {
    pairs[c] = (round_to_bf16(even[c]) >> 16) | (round_to_bf16(odd[c]) & 0xffff0000u);
  }
}

}  // namespace
}  // namespace mtl
