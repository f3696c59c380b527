// Flash attention (Dao et al. 2022) in blocks of 64 queries x 64 keys. Everything is computed
// transposed, scores as [key][query]: the per-query statistics (maximum, sum, lse, delta) then lie
// along the vector registers, and no step needs a reduction across a register. Operands are packed
// once per head into padded blocks (zeros), so that any head_dim and sequence length takes the same
// path. f16, and bf16 without AMX, are widened while packing and computed in f32.
#include "runtime/device/cpu/kernels/attention_kernels.h"

#include "common/half.h"
#include "runtime/device/cpu/kernels/attention_gemm.h"
#include "runtime/device/cpu/kernels/attention_philox.h"
#include "runtime/device/cpu/kernels/matmul_math.h"

namespace mtl {
namespace {

constexpr int64_t kB = kAttentionBlock;
constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
constexpr float kMasked = -1e30f;  // a score that exp2 turns into 0
// What the running maximum begins with: above masked scores, whatever they are scaled with, and
// below all others. With a masked score as the maximum of a hidden block, exp2 would be asked for
// the rounding error of it, which is not small.
constexpr float kNoMaximum = -1e20f;

int64_t blocks_of(int64_t seq) {
  return (seq + kB - 1) / kB;
}
int64_t padded(int64_t dim) {
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

// Hands out parts of a workspace; with null memory it only counts.
struct Parts {
  char* memory;
  size_t used = 0;
  template <typename T>
  T* get(int64_t count) {
    T* part = memory == nullptr ? nullptr : reinterpret_cast<T*>(memory + used);
    used += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return part;
  }
};

// --- packing: one block of `rows` <= 64 rows of [.., dim] -> zero-padded [64][D] in four forms ---

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
[[maybe_unused]] void pack_b(const uint16_t* from, int64_t stride, int64_t rows, int64_t dim,
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
[[maybe_unused]] void pack_b_transposed(const uint16_t* from, int64_t stride, int64_t rows,
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

// --- dropout ---

// mask[key][query] = keep_scale where the element is kept, else 0, for block (i, j) of queries and
// keys of the head whose elements start at `first`.
void dropout_block(const AttentionTask& t, uint64_t first, int64_t i, int64_t j, float* mask) {
  const int64_t rows = t.seq - i * kB < kB ? t.seq - i * kB : kB;
  const uint32_t threshold = static_cast<uint32_t>(t.keep_threshold);
  if (t.seq % 4 == 0) {
    // Four keys in a row share a counter, for every query: the words come out as the mask lies.
    // (Rows of padding get some mask too; their outputs are dropped and their gradients 0.)
    const uint64_t step = static_cast<uint64_t>(t.seq / 4);
    for (int64_t k = 0; k < kB; k += 4) {
      for (int64_t r = 0; r < kB; r += 16) {
        alignas(64) uint32_t words[64];
        const uint64_t element = first + static_cast<uint64_t>((i * kB + r) * t.seq + j * kB + k);
        philox16_strided(element / 4, step, t.key, words);
        for (int w = 0; w < 4; ++w) {
          for (int c = 0; c < 16; ++c) {
            mask[(k + w) * kB + r + c] = words[w * 16 + c] >= threshold ? t.keep_scale : 0.0f;
          }
        }
      }
    }
    return;
  }
  for (int64_t r = 0; r < rows; ++r) {
    const uint64_t element = first + static_cast<uint64_t>((i * kB + r) * t.seq + j * kB);
    const uint64_t shift = element % 4;
    float row[kB + 64];
    for (int part = 0; part < (shift == 0 ? 1 : 2); ++part) {
      alignas(64) uint32_t words[64];
      philox16(element / 4 + static_cast<uint64_t>(part) * 16, t.key, words);
      for (int w = 0; w < 64; ++w) {
        row[part * 64 + w] = words[w] >= threshold ? t.keep_scale : 0.0f;
      }
    }
    for (int64_t k = 0; k < kB; ++k) mask[k * kB + r] = row[shift + static_cast<uint64_t>(k)];
  }
  for (int64_t k = 0; k < kB && rows < kB; ++k) {
    for (int64_t r = rows; r < kB; ++r) mask[k * kB + r] = 0;
  }
}

// --- element-wise parts of a block, [key][query] ---

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

// ALiBi in block (i, j) of queries and keys: scores += slope * (key - query).
void add_alibi(float slope, int64_t i, int64_t j, float* s) {
  float query[kB];
  for (int64_t c = 0; c < kB; ++c) query[c] = static_cast<float>(i * kB + c);
  for (int64_t r = 0; r < kB; ++r) {
    const float key = static_cast<float>(j * kB + r);
    for (int64_t c = 0; c < kB; ++c) s[r * kB + c] += slope * (key - query[c]);
  }
}

// Sets what a causal block on the diagonal may not see.
void mask_diagonal(float* s) {
  for (int64_t r = 1; r < kB; ++r) {
    for (int64_t c = 0; c < r; ++c) s[r * kB + c] = kMasked;
  }
}

// The first key that a query sees; it does not fall from one query to the next.
int64_t first_seen(const AttentionTask& t, int64_t query) {
  if (query >= t.seq) query = t.seq - 1;  // padding
  int64_t first = t.first_key == nullptr ? 0 : t.first_key[query];
  if (t.window > 0 && query - t.window + 1 > first) first = query - t.window + 1;
  return first;
}
// The first block of keys that some query of block i sees.
int64_t first_block_seen(const AttentionTask& t, int64_t i) {
  return first_seen(t, i * kB) / kB;
}

// Sets what the queries of block i may not see of the keys of block j because it is too old. To a
// query from which it is hidden as a whole it adds nothing.
void mask_unseen(const AttentionTask& t, int64_t i, int64_t j, float* s) {
  if (first_seen(t, i * kB + kB - 1) <= j * kB) return;
  for (int64_t c = 0; c < kB; ++c) {
    int64_t hidden = first_seen(t, i * kB + c) - j * kB;
    if (hidden > kB) hidden = kB;
    for (int64_t r = 0; r < hidden; ++r) s[r * kB + c] = kMasked;
  }
}

// Scores -> unnormalised probabilities as operand B; updates the running maximum m (in units of
// log2) and sum l, and returns in alpha the factor for what was summed before.
template <typename P>
void softmax_step(const float* __restrict s, float scale, const float* mask, float* __restrict m,
                  float* __restrict l, float* __restrict alpha, P* __restrict p) {
  float top[kB];
  for (int64_t c = 0; c < kB; ++c) top[c] = m[c];
  for (int64_t r = 0; r < kB; ++r) {
    for (int64_t c = 0; c < kB; ++c) {
      const float x = s[r * kB + c] * scale;
      top[c] = x > top[c] ? x : top[c];
    }
  }
  for (int64_t c = 0; c < kB; ++c) {
    alpha[c] = exp2_fast(m[c] - top[c]);
    m[c] = top[c];
    l[c] *= alpha[c];
  }
  for (int64_t r = 0; r < kB; r += 2) {
    alignas(64) float pair[2][kB];
    for (int64_t h = 0; h < 2; ++h) {
      const float* row = s + (r + h) * kB;
      for (int64_t c = 0; c < kB; ++c) pair[h][c] = exp2_fast(row[c] * scale - top[c]);
      for (int64_t c = 0; c < kB; ++c) l[c] += pair[h][c];
      if (mask != nullptr) {
        for (int64_t c = 0; c < kB; ++c) pair[h][c] *= mask[(r + h) * kB + c];
      }
    }
    store_b(pair[0], pair[1], p + r * kB);
  }
}

// Scores and dP -> P (after dropout) and dS as operands A, dS as operand B too (the same as A in
// f32).
template <typename P>
void gradient_step(const float* __restrict s, const float* __restrict dp, float scale,
                   const float* mask, const float* __restrict lse2, const float* __restrict delta,
                   P* __restrict p_a, P* __restrict ds_a, P* __restrict ds_b) {
  for (int64_t r = 0; r < kB; r += 2) {
    alignas(64) float p[2][kB];
    alignas(64) float ds[2][kB];
    for (int64_t h = 0; h < 2; ++h) {
      const int64_t at = (r + h) * kB;
      for (int64_t c = 0; c < kB; ++c) p[h][c] = exp2_fast(s[at + c] * scale - lse2[c]);
      if (mask == nullptr) {
        for (int64_t c = 0; c < kB; ++c) ds[h][c] = p[h][c] * (dp[at + c] - delta[c]);
      } else {
        for (int64_t c = 0; c < kB; ++c) {
          ds[h][c] = p[h][c] * (dp[at + c] * mask[at + c] - delta[c]);
          p[h][c] *= mask[at + c];
        }
      }
      for (int64_t c = 0; c < kB; ++c) store(p_a + at + c, p[h][c]);
      for (int64_t c = 0; c < kB; ++c) store(ds_a + at + c, ds[h][c]);
    }
    if (ds_b != ds_a) store_b(ds[0], ds[1], ds_b + r * kB);
  }
}

int64_t rows_in(const AttentionTask& t, int64_t block) {
  return t.seq - block * kB < kB ? t.seq - block * kB : kB;
}

template <typename P>
struct ForwardParts {
  P *k, *v, *q, *p;
  float *s, *o, *mask;
  ForwardParts(Parts& parts, const AttentionTask& t) {
    const int64_t D = padded(t.head_dim), n = t.last_block;
    k = parts.get<P>(n * kB * D);
    v = parts.get<P>(n * kB * D);
    q = parts.get<P>(kB * D);
    p = parts.get<P>(kB * kB);
    s = parts.get<float>(kB * kB);
    o = parts.get<float>(kB * D);
    mask = t.keep_threshold == 0 ? nullptr : parts.get<float>(kB * kB);
  }
};

// S: element type in memory, P: of the packed operands.
template <typename S, typename P>
void forward_as(const AttentionTask& t) {
  Parts parts{static_cast<char*>(t.workspace)};
  const ForwardParts<P> w(parts, t);
  const int64_t D = padded(t.head_dim);
  const S *q = static_cast<const S*>(t.q), *k = static_cast<const S*>(t.k),
          *v = static_cast<const S*>(t.v);
  for (int64_t j = first_block_seen(t, t.first_block); j < t.last_block; ++j) {
    const int64_t from = j * kB * t.qkv_stride, to = j * kB * D;
    pack_rows(k + from, t.qkv_stride, rows_in(t, j), t.head_dim, D, w.k + to);
    pack_columns(v + from, t.qkv_stride, rows_in(t, j), t.head_dim, D, w.v + to);
  }
  for (int64_t i = t.first_block; i < t.last_block; ++i) {
    const int64_t rows = rows_in(t, i);
    pack_b_transposed(q + i * kB * t.qkv_stride, t.qkv_stride, rows, t.head_dim, D, w.q);
    alignas(64) float m[kB], l[kB], alpha[kB];
    for (int64_t c = 0; c < kB; ++c) {
      m[c] = kNoMaximum;
      l[c] = 0;
    }
    const int64_t begin = first_block_seen(t, i);
    for (int64_t j = begin; j <= i; ++j) {
      gemm(w.k + j * kB * D, D, w.q, kB, w.s, kB, kB, kB, D, false);
      if (t.slopes != nullptr) add_alibi(t.slopes[0], i, j, w.s);
      if (j == i) mask_diagonal(w.s);
      mask_unseen(t, i, j, w.s);
      if (w.mask != nullptr) dropout_block(t, t.first_element, i, j, w.mask);
      softmax_step(w.s, t.scale * kLog2e, w.mask, m, l, alpha, w.p);
      if (j > begin) {
        for (int64_t d = 0; d < D; ++d) {
          for (int64_t c = 0; c < kB; ++c) w.o[d * kB + c] *= alpha[c];
        }
      }
      gemm(w.v + j * kB * D, kB, w.p, kB, w.o, kB, D, kB, kB, j > begin);
    }
    S* out = static_cast<S*>(t.out) + i * kB * t.out_stride;
    for (int64_t c = 0; c < rows; ++c) {
      const float inverse = 1.0f / l[c];
      for (int64_t d = 0; d < t.head_dim; ++d) {
        store(out + c * t.out_stride + d, w.o[d * kB + c] * inverse);
      }
      t.lse[i * kB + c] = m[c] * kLn2 + __builtin_logf(l[c]);
    }
  }
}

template <typename P>
struct BackwardParts {
  P *k, *k_t, *v, *q, *q_t, *dout, *dout_t, *p, *ds_a, *ds_b;
  float *dk, *dv, *dq, *s, *dp, *lse2, *delta, *mask;
  BackwardParts(Parts& parts, const AttentionTask& t) {
    const int64_t D = padded(t.head_dim), T = blocks_of(t.seq) * kB;
    k = parts.get<P>(T * D);
    k_t = parts.get<P>(T * D);
    v = parts.get<P>(T * D);
    q = parts.get<P>(T * D);
    q_t = parts.get<P>(T * D);
    dout = parts.get<P>(T * D);
    dout_t = parts.get<P>(T * D);
    p = parts.get<P>(kB * kB);
    ds_a = parts.get<P>(kB * kB);
    ds_b = sizeof(P) == 4 ? ds_a : parts.get<P>(kB * kB);
    dk = parts.get<float>(T * D);
    dv = parts.get<float>(T * D);
    dq = parts.get<float>(T * D);
    s = parts.get<float>(kB * kB);
    dp = parts.get<float>(kB * kB);
    lse2 = parts.get<float>(T);
    delta = parts.get<float>(T);
    mask = t.keep_threshold == 0 ? nullptr : parts.get<float>(kB * kB);
  }
};

template <typename S, typename P>
void backward_as(const AttentionTask& t) {
  Parts parts{static_cast<char*>(t.workspace)};
  const BackwardParts<P> w(parts, t);
  const int64_t D = padded(t.head_dim), n = blocks_of(t.seq), dim = t.head_dim;
  const int64_t stride = t.qkv_stride, block = kB * D;
  const S *k = static_cast<const S*>(t.k), *v = static_cast<const S*>(t.v);
  for (int64_t j = 0; j < n; ++j) {
    const int64_t from = j * kB * stride, rows = rows_in(t, j);
    pack_rows(k + from, stride, rows, dim, D, w.k + j * block);
    pack_columns(k + from, stride, rows, dim, D, w.k_t + j * block);
    pack_rows(v + from, stride, rows, dim, D, w.v + j * block);
  }
  for (int64_t g = 0; g < t.group; ++g) {
    const S* q = static_cast<const S*>(t.q) + g * dim;
    const S* out = static_cast<const S*>(t.out) + g * dim;
    const S* dout = static_cast<const S*>(t.dout) + g * dim;
    const uint64_t first = t.first_element + static_cast<uint64_t>(g * t.seq * t.seq);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t rows = rows_in(t, i);
      pack_b(q + i * kB * stride, stride, rows, dim, D, w.q + i * block);
      pack_b_transposed(q + i * kB * stride, stride, rows, dim, D, w.q_t + i * block);
      const S* dout_i = dout + i * kB * t.out_stride;
      pack_b(dout_i, t.out_stride, rows, dim, D, w.dout + i * block);
      pack_b_transposed(dout_i, t.out_stride, rows, dim, D, w.dout_t + i * block);
      for (int64_t c = 0; c < kB; ++c) {
        // Rows of padding have dout = q = 0 and contribute nothing whatever their statistics.
        w.lse2[i * kB + c] = c < rows ? t.lse[g * t.seq + i * kB + c] * kLog2e : 0.0f;
        float lanes[16] = {};
        if (c < rows) {
          const S* a = out + (i * kB + c) * t.out_stride;
          const S* b = dout_i + c * t.out_stride;
          int64_t d = 0;
          for (; d + 16 <= dim; d += 16) {
            for (int64_t x = 0; x < 16; ++x) lanes[x] += load(a + d + x) * load(b + d + x);
          }
          for (int64_t x = 0; d < dim; ++d, ++x) lanes[x] += load(a + d) * load(b + d);
        }
        float sum = 0;
        for (const float lane : lanes) sum += lane;
        w.delta[i * kB + c] = sum;
      }
    }
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = j; i < n; ++i) {
        const int64_t begin = first_block_seen(t, i);
        if (begin > j) break;  // nor do later queries see a key of this block
        gemm(w.k + j * block, D, w.q_t + i * block, kB, w.s, kB, kB, kB, D, false);
        gemm(w.v + j * block, D, w.dout_t + i * block, kB, w.dp, kB, kB, kB, D, false);
        if (t.slopes != nullptr) add_alibi(t.slopes[g], i, j, w.s);
        if (i == j) mask_diagonal(w.s);
        mask_unseen(t, i, j, w.s);
        if (w.mask != nullptr) dropout_block(t, first, i, j, w.mask);
        gradient_step(w.s, w.dp, t.scale * kLog2e, w.mask, w.lse2 + i * kB, w.delta + i * kB, w.p,
                      w.ds_a, w.ds_b);
        const bool sum = g > 0 || i > j;
        gemm(w.p, kB, w.dout + i * block, D, w.dv + j * block, D, kB, D, kB, sum);
        gemm(w.ds_a, kB, w.q + i * block, D, w.dk + j * block, D, kB, D, kB, sum);
        gemm(w.k_t + j * block, kB, w.ds_b, kB, w.dq + i * block, kB, D, kB, kB, j > begin);
      }
    }
    S* dq = static_cast<S*>(t.dq) + g * dim;
    for (int64_t row = 0; row < t.seq; ++row) {
      const float* from = w.dq + row / kB * block + row % kB;
      for (int64_t d = 0; d < dim; ++d) store(dq + row * stride + d, from[d * kB] * t.scale);
    }
  }
  S *dk = static_cast<S*>(t.dk), *dv = static_cast<S*>(t.dv);
  for (int64_t row = 0; row < t.seq; ++row) {
    for (int64_t d = 0; d < dim; ++d) store(dk + row * stride + d, w.dk[row * D + d] * t.scale);
    for (int64_t d = 0; d < dim; ++d) store(dv + row * stride + d, w.dv[row * D + d]);
  }
}

size_t forward_workspace(const AttentionTask& t) {
  Parts parts{nullptr};
  if (t.tiles) {
    (void)ForwardParts<uint16_t>(parts, t);
  } else {
    (void)ForwardParts<float>(parts, t);
  }
  return parts.used;
}

size_t backward_workspace(const AttentionTask& t) {
  Parts parts{nullptr};
  if (t.tiles) {
    (void)BackwardParts<uint16_t>(parts, t);
  } else {
    (void)BackwardParts<float>(parts, t);
  }
  return parts.used;
}

void forward(const AttentionTask& t) {
#if defined(__AVX512F__)
  if (t.tiles) {
    const Tiles tiles(true);
    forward_as<uint16_t, uint16_t>(t);
    return;
  }
#endif
  switch (t.type) {
    case AttentionType::f32:
      return forward_as<float, float>(t);
    case AttentionType::bf16:
      return forward_as<uint16_t, float>(t);
    case AttentionType::f16:
      return forward_as<_Float16, float>(t);
  }
}

void backward(const AttentionTask& t) {
#if defined(__AVX512F__)
  if (t.tiles) {
    const Tiles tiles(true);
    backward_as<uint16_t, uint16_t>(t);
    return;
  }
#endif
  switch (t.type) {
    case AttentionType::f32:
      return backward_as<float, float>(t);
    case AttentionType::bf16:
      return backward_as<uint16_t, float>(t);
    case AttentionType::f16:
      return backward_as<_Float16, float>(t);
  }
}

}  // namespace

namespace MTL_ISA {
extern const AttentionKernels kAttentionKernels = {forward_workspace, backward_workspace, forward,
                                                   backward, philox16};
}
}  // namespace mtl
