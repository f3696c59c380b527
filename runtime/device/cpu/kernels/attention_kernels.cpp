// Flash attention (Dao et al. 2022) in blocks of 64 queries x 64 keys. Everything is computed
// transposed, scores as [key][query]: the per-query statistics (maximum, sum, lse, delta) then lie
// along the vector registers, and no step needs a reduction across a register. Operands are packed
// once per head into padded blocks (zeros), so that any head_dim and sequence length takes the same
// path. f16, and bf16 without AMX, are widened while packing and computed in f32.
#include "runtime/device/cpu/kernels/attention_kernels.h"

#include "runtime/device/cpu/kernels/attention_gemm.h"
#include "runtime/device/cpu/kernels/attention_masks.h"
#include "runtime/device/cpu/kernels/attention_packing.h"
#include "runtime/device/cpu/kernels/attention_philox.h"
#include "runtime/device/cpu/kernels/matmul_math.h"

namespace mtl {
namespace {

constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
// What the running maximum begins with: above masked scores, whatever they are scaled with, and
// below all others. With a masked score as the maximum of a hidden block, exp2 would be asked for
// the rounding error of it, which is not small.
constexpr float kNoMaximum = -1e20f;

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
// f32). `inner`: what makes the tanh of a cap of a score; 0 without one.
template <typename P>
void gradient_step(const float* __restrict s, const float* __restrict dp, float scale, float inner,
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
      if (inner > 0) {
        for (int64_t c = 0; c < kB; ++c) {
          const float t = s[at + c] * inner;
          ds[h][c] *= t > -1.0f ? 1.0f - t * t : 0.0f;  // what is masked lies far below
        }
      }
      for (int64_t c = 0; c < kB; ++c) store(p_a + at + c, p[h][c]);
      for (int64_t c = 0; c < kB; ++c) store(ds_a + at + c, ds[h][c]);
    }
    if (ds_b != ds_a) store_b(ds[0], ds[1], ds_b + r * kB);
  }
}

template <typename P>
struct ForwardParts {
  P *k, *v, *q, *p;
  float *s, *o, *mask;
  ForwardParts(Parts& parts, const AttentionTask& t) {
    const int64_t D = padded(t.head_dim), V = padded(t.value_dim), n = t.last_block;
    k = parts.get<P>(n * kB * D);
    v = parts.get<P>(n * kB * V);
    q = parts.get<P>(kB * D);
    p = parts.get<P>(kB * kB);
    s = parts.get<float>(kB * kB);
    o = parts.get<float>(kB * V);
    mask = t.keep_threshold == 0 ? nullptr : parts.get<float>(kB * kB);
  }
};

// S: element type in memory, P: of the packed operands.
template <typename S, typename P>
void forward_as(const AttentionTask& t) {
  Parts parts{static_cast<char*>(t.workspace)};
  const ForwardParts<P> w(parts, t);
  const int64_t D = padded(t.head_dim), V = padded(t.value_dim);
  const S *q = static_cast<const S*>(t.q), *k = static_cast<const S*>(t.k),
          *v = static_cast<const S*>(t.v);
  for (int64_t j = first_block_seen(t, t.first_block); j < t.last_block; ++j) {
    const int64_t from = j * kB * t.qkv_stride, rows = rows_in(t, j);
    pack_rows(k + from, t.qkv_stride, rows, t.head_dim, D, w.k + j * kB * D);
    pack_columns(v + from, t.qkv_stride, rows, t.value_dim, V, w.v + j * kB * V);
  }
  for (int64_t i = t.first_block; i < t.last_block; ++i) {
    const int64_t rows = rows_in(t, i);
    pack_b_transposed(q + i * kB * t.qkv_stride, t.qkv_stride, rows, t.head_dim, D, w.q);
    alignas(64) float m[kB], l[kB], alpha[kB];
    // A sink is what each query has seen before any key. Far below all scores it is nothing.
    const float sink2 =
        t.sink == nullptr ? kNoMaximum : load(static_cast<const S*>(t.sink)) * kLog2e;
    for (int64_t c = 0; c < kB; ++c) {
      m[c] = sink2 > kNoMaximum ? sink2 : kNoMaximum;
      l[c] = sink2 > kNoMaximum ? 1 : 0;
    }
    const int64_t begin = first_block_seen(t, i);
    for (int64_t j = begin; j <= i; ++j) {
      gemm(w.k + j * kB * D, D, w.q, kB, w.s, kB, kB, kB, D, false);
      if (t.cap > 0) cap_scores(t, w.s);
      if (t.slopes != nullptr) add_alibi(t.slopes[0], i, j, w.s);
      if (j == i) mask_diagonal(w.s);
      mask_unseen(t, i, j, w.s);
      if (w.mask != nullptr) dropout_block(t, t.first_element, i, j, w.mask);
      softmax_step(w.s, t.scale * kLog2e, w.mask, m, l, alpha, w.p);
      if (j > begin) {
        for (int64_t d = 0; d < V; ++d) {
          for (int64_t c = 0; c < kB; ++c) w.o[d * kB + c] *= alpha[c];
        }
      }
      gemm(w.v + j * kB * V, kB, w.p, kB, w.o, kB, V, kB, kB, j > begin);
    }
    S* out = static_cast<S*>(t.out) + i * kB * t.out_stride;
    for (int64_t c = 0; c < rows; ++c) {
      const float inverse = 1.0f / l[c];
      for (int64_t d = 0; d < t.value_dim; ++d) {
        store(out + c * t.out_stride + d, w.o[d * kB + c] * inverse);
      }
      t.lse[i * kB + c] = m[c] * kLn2 + __builtin_logf(l[c]);
    }
  }
}

// Of the rows of a head in out and dout, in an order that does not depend on the registers.
template <typename S>
float row_product(const S* a, const S* b, int64_t count) {
  float lanes[16] = {};
  int64_t d = 0;
  for (; d + 16 <= count; d += 16) {
    for (int64_t x = 0; x < 16; ++x) lanes[x] += load(a + d + x) * load(b + d + x);
  }
  for (int64_t x = 0; d < count; ++d, ++x) lanes[x] += load(a + d) * load(b + d);
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

template <typename P>
struct BackwardParts {
  P *k, *k_t, *v, *q, *q_t, *dout, *dout_t, *p, *ds_a, *ds_b;
  float *dk, *dv, *dq, *s, *dp, *lse2, *delta, *mask;
  BackwardParts(Parts& parts, const AttentionTask& t) {
    const int64_t D = padded(t.head_dim), V = padded(t.value_dim), T = blocks_of(t.seq) * kB;
    k = parts.get<P>(T * D);
    k_t = parts.get<P>(T * D);
    v = parts.get<P>(T * V);
    q = parts.get<P>(T * D);
    q_t = parts.get<P>(T * D);
    dout = parts.get<P>(T * V);
    dout_t = parts.get<P>(T * V);
    p = parts.get<P>(kB * kB);
    ds_a = parts.get<P>(kB * kB);
    ds_b = sizeof(P) == 4 ? ds_a : parts.get<P>(kB * kB);
    dk = parts.get<float>(T * D);
    dv = parts.get<float>(T * V);
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
  const int64_t V = padded(t.value_dim), value_dim = t.value_dim;
  const int64_t stride = t.qkv_stride, block = kB * D, value_block = kB * V;
  const S *k = static_cast<const S*>(t.k), *v = static_cast<const S*>(t.v);
  for (int64_t j = 0; j < n; ++j) {
    const int64_t from = j * kB * stride, rows = rows_in(t, j);
    pack_rows(k + from, stride, rows, dim, D, w.k + j * block);
    pack_columns(k + from, stride, rows, dim, D, w.k_t + j * block);
    pack_rows(v + from, stride, rows, value_dim, V, w.v + j * value_block);
  }
  for (int64_t g = 0; g < t.group; ++g) {
    const S* q = static_cast<const S*>(t.q) + g * dim;
    const S* out = static_cast<const S*>(t.out) + g * value_dim;
    const S* dout = static_cast<const S*>(t.dout) + g * value_dim;
    const uint64_t first = t.first_element + static_cast<uint64_t>(g * t.seq * t.seq);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t rows = rows_in(t, i);
      pack_b(q + i * kB * stride, stride, rows, dim, D, w.q + i * block);
      pack_b_transposed(q + i * kB * stride, stride, rows, dim, D, w.q_t + i * block);
      const S* dout_i = dout + i * kB * t.out_stride;
      pack_b(dout_i, t.out_stride, rows, value_dim, V, w.dout + i * value_block);
      pack_b_transposed(dout_i, t.out_stride, rows, value_dim, V, w.dout_t + i * value_block);
      for (int64_t c = 0; c < kB; ++c) {
        // Rows of padding have dout = q = 0 and contribute nothing whatever their statistics.
        w.lse2[i * kB + c] = c < rows ? t.lse[g * t.seq + i * kB + c] * kLog2e : 0.0f;
        const int64_t row = (i * kB + c) * t.out_stride;
        w.delta[i * kB + c] = c < rows ? row_product(out + row, dout + row, value_dim) : 0.0f;
      }
    }
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = j; i < n; ++i) {
        const int64_t begin = first_block_seen(t, i);
        if (begin > j) break;  // nor do later queries see a key of this block
        gemm(w.k + j * block, D, w.q_t + i * block, kB, w.s, kB, kB, kB, D, false);
        gemm(w.v + j * value_block, V, w.dout_t + i * value_block, kB, w.dp, kB, kB, kB, V, false);
        if (t.cap > 0) cap_scores(t, w.s);
        if (t.slopes != nullptr) add_alibi(t.slopes[g], i, j, w.s);
        if (i == j) mask_diagonal(w.s);
        mask_unseen(t, i, j, w.s);
        if (w.mask != nullptr) dropout_block(t, first, i, j, w.mask);
        gradient_step(w.s, w.dp, t.scale * kLog2e, t.cap > 0 ? t.scale / t.cap : 0, w.mask,
                      w.lse2 + i * kB, w.delta + i * kB, w.p, w.ds_a, w.ds_b);
        const bool sum = g > 0 || i > j;
        gemm(w.p, kB, w.dout + i * value_block, V, w.dv + j * value_block, V, kB, V, kB, sum);
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
    for (int64_t d = 0; d < value_dim; ++d) store(dv + row * stride + d, w.dv[row * V + d]);
  }
}

// The sums of blocks are added to their sum: of long sequences less is lost.
template <typename S>
float sink_gradient_as(const AttentionTask& t) {
  const S *out = static_cast<const S*>(t.out), *dout = static_cast<const S*>(t.dout);
  const float sink = load(static_cast<const S*>(t.sink));
  float sum = 0;
  for (int64_t i = 0; i < blocks_of(t.seq); ++i) {
    float of_block = 0;
    for (int64_t c = 0; c < rows_in(t, i); ++c) {
      const int64_t row = i * kB + c, at = row * t.out_stride;
      of_block +=
          exp2_fast((sink - t.lse[row]) * kLog2e) * row_product(out + at, dout + at, t.value_dim);
    }
    sum += of_block;
  }
  return -sum;
}

template <template <typename> typename PassParts>
size_t workspace_of(const AttentionTask& t) {
  Parts parts{nullptr};
  if (t.tiles) {
    (void)PassParts<uint16_t>(parts, t);
  } else {
    (void)PassParts<float>(parts, t);
  }
  return parts.used;
}

// pass<S, P>() for the types of the task.
template <typename Pass>
void with_types(const AttentionTask& t, Pass pass) {
#if defined(__AVX512F__)
  if (t.tiles) {
    const Tiles tiles;
    return pass.template operator()<uint16_t, uint16_t>();
  }
#endif
  switch (t.type) {
    case AttentionType::f32:
      return pass.template operator()<float, float>();
    case AttentionType::bf16:
      return pass.template operator()<uint16_t, float>();
    case AttentionType::f16:
      return pass.template operator()<_Float16, float>();
  }
}

void forward(const AttentionTask& t) {
  with_types(t, [&]<typename S, typename P>() { forward_as<S, P>(t); });
}

void backward(const AttentionTask& t) {
  with_types(t, [&]<typename S, typename P>() { backward_as<S, P>(t); });
}

float sink_gradient(const AttentionTask& t) {
  switch (t.type) {
    case AttentionType::f32:
      return sink_gradient_as<float>(t);
    case AttentionType::bf16:
      return sink_gradient_as<uint16_t>(t);
    case AttentionType::f16:
      return sink_gradient_as<_Float16>(t);
  }
  return 0;
}

}  // namespace

namespace MTL_ISA {
extern const AttentionKernels kAttentionKernels = {workspace_of<ForwardParts>,
                                                   workspace_of<BackwardParts>,
                                                   forward,
                                                   backward,
                                                   sink_gradient,
                                                   philox16};
}
}  // namespace mtl
