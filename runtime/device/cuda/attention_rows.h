// Attention on the CUDA cores for any type, head_dim and alignment: a warp per query (forward, dQ)
// or per key (dK, dV), 32 keys or queries at a time, one to a lane for the products along head_dim;
// then the lanes share out head_dim and add up the 32 rows. Sums are f32 and in order. Warps work
// alone: the only barriers are a warp's.
#pragma once

#include "runtime/device/cuda/attention.h"

namespace mtl::cuda {

inline constexpr int kRowWarps = 4;

// The rows of f32 of head_dim elements (values and what is made of them need no more), and the
// 32-element rows, that a warp has in shared memory.
inline size_t rows_shared_bytes(const AttentionWork& w, int rows, int lanes_rows) {
  return sizeof(float) * kRowWarps *
         (static_cast<size_t>(rows) * static_cast<size_t>(w.head_dim) +
          static_cast<size_t>(lanes_rows) * kWarp);
}
__device__ inline float* rows_of_warp(const AttentionWork& w, unsigned char* shared, int rows,
                                      int lanes_rows) {
  const size_t warp = threadIdx.x / kWarp;
  return reinterpret_cast<float*>(shared) +
         warp * (static_cast<size_t>(rows) * static_cast<size_t>(w.head_dim) +
                 static_cast<size_t>(lanes_rows) * kWarp);
}

template <typename T>
__device__ inline float dot(const float* a, const T* b, int count) {
  float sum = 0;
  for (int d = 0; d < count; ++d) sum += a[d] * to_float(b[d]);
  return sum;
}

// Which (sequence, head, row) a warp has, of rows [first_row, seq) of each of `heads`. False: none.
struct RowPlace {
  int b, head, row;
};
__host__ __device__ inline unsigned row_blocks(const AttentionWork& w, int first_row) {
  return static_cast<unsigned>(w.seq - first_row + kRowWarps - 1) / kRowWarps;
}
__device__ inline bool row_of_warp(const AttentionWork& w, int heads, int first_row,
                                   RowPlace& place) {
  const unsigned blocks = row_blocks(w, first_row), head = blockIdx.x / blocks;
  place.b = static_cast<int>(head) / heads;
  place.head = static_cast<int>(head) % heads;
  place.row = first_row + static_cast<int>(blockIdx.x % blocks * kRowWarps + threadIdx.x / kWarp);
  return place.row < w.seq;
}
inline dim3 grid_of_rows(const AttentionWork& w, int heads, int first_row) {
  return dim3(row_blocks(w, first_row) * static_cast<unsigned>(w.batch * heads));
}

// A score in units of log2, before ALiBi, of the product of a query and a key.
__device__ inline float row_score(const AttentionWork& w, float product) {
  return (w.inner != 0 ? tanh_of(product * w.inner) : product) * w.scale2;
}

template <typename T>
__global__ void __launch_bounds__(kRowWarps* kWarp, 4) attention_forward_rows(AttentionWork w) {
  MTL_DYNAMIC_SHARED(shared);
  RowPlace at;
  if (!row_of_warp(w, w.heads, w.first_query, at)) return;
  know_pass(w);
  const HeadPlace place = place_of(w, at.b, at.head);
  const int lane = static_cast<int>(threadIdx.x % kWarp), dim = w.head_dim, q = at.row;
  const int value_dim = w.value_dim;
  float* const query = rows_of_warp(w, shared, 2, 1);
  float* const sums = query + dim;
  float* const weights = sums + dim;
  const T* const rows = static_cast<const T*>(w.qkv) + place.row * w.row_stride;
  const T* const keys = rows + key_column(w, place);
  const T* const values = rows + value_column<true>(w, place);
  for (int d = lane; d < dim; d += static_cast<int>(kWarp)) {
    query[d] = to_float(rows[q * w.row_stride + query_column(w, place) + d]);
    sums[d] = 0;
  }
  __syncwarp();
  const float slope = w.slopes != nullptr ? w.slopes[at.head] : 0.0f;
  float top = -INFINITY, total = 0;  // in units of log2; a lane's share
  const int low = first_seen(w, place.row, q);
  for (int first = low - low % static_cast<int>(kWarp); first <= q;
       first += static_cast<int>(kWarp)) {
    const int k = first + lane, count = min(static_cast<int>(kWarp), q + 1 - first);
    const bool seen = k >= low && k <= q;
    float x = -INFINITY;
    if (seen) {
      x = row_score(w, dot(query, keys + k * w.row_stride, dim)) +
          slope * static_cast<float>(k - q);
    }
    const float new_top = fmaxf(top, warp_max(x));
    const float before = exp2f(top - new_top);
    float p = seen ? exp2f(x - new_top) : 0.0f;
    top = new_top;
    total = total * before + p;
    if (w.keep_from != 0 && seen) {
      const uint64_t element = place.first + static_cast<uint64_t>(int64_t{q} * w.seq + k);
      p = is_kept(w, element) ? p * w.keep_scale : 0.0f;
    }
    weights[lane] = p;
    __syncwarp();
    for (int d = lane; d < value_dim; d += static_cast<int>(kWarp)) {
      float sum = sums[d] * before;
      for (int i = 0; i < count; ++i) {
        sum += weights[i] * to_float(values[(first + i) * w.row_stride + d]);
      }
      sums[d] = sum;
    }
    __syncwarp();  // before the next weights
  }
  total = warp_sum(total);
  float before = 1;
  if (w.sinks != nullptr) before = count_sink(sink_of<T>(w, at.head), top, total);
  T* const out =
      static_cast<T*>(w.out) + (place.row + q) * w.out_stride + out_column<true>(w, place);
  // A lane reads the sums that it has written.
  for (int d = lane; d < value_dim; d += static_cast<int>(kWarp)) {
    out[d] = from_float<T>(sums[d] * before / total);
  }
  // Not one operation, which nvcc makes of it or not by what stands before.
  if (lane == 0) w.lse[place.of_all * w.seq + q] = __fadd_rn(top * kLn2, logf(total));
}

// The statistics of every query, and of the padding behind a head's queries: a team of lanes for
// each, which reads packs of N elements (eight lanes a head of 64 in one go).
template <int N>
inline constexpr int kStatsTeam = N > 1 ? 8 : static_cast<int>(kWarp);
template <int N>
inline constexpr int kStatsRows = kRowWarps* static_cast<int>(kWarp) / kStatsTeam<N>;  // of a block
template <typename T, int N>
__global__ void __launch_bounds__(kRowWarps* kWarp, 4) attention_stats(AttentionWork w) {
  constexpr int kTeam = kStatsTeam<N>;
  const auto blocks = static_cast<unsigned>(w.stats_stride) / kStatsRows<N>;
  const int head = static_cast<int>(blockIdx.x / blocks);
  const int q = static_cast<int>(blockIdx.x % blocks * kStatsRows<N> + threadIdx.x / kTeam);
  const int lane = static_cast<int>(threadIdx.x) % kTeam;
  float sum = 0;
  if (q < w.seq) {
    const int64_t at = (int64_t{head / w.heads} * w.seq + q) * w.out_stride +
                       int64_t{head % w.heads} * w.value_dim;
    const T* const out = static_cast<const T*>(w.out) + at;
    const T* const dout = static_cast<const T*>(w.dout) + at;
    for (int d = lane * N; d < w.value_dim; d += kTeam * N) {
      const Floats<N> o = load<N>(out + d), gradient = load<N>(dout + d);
      for (int k = 0; k < N; ++k) sum += o.at[k] * gradient.at[k];
    }
  }
  for (int apart = kTeam / 2; apart > 0; apart /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, apart);
  }
  if (lane > 0) return;
  const float lse2 = q < w.seq ? w.lse[int64_t{head} * w.seq + q] * kLog2e : INFINITY;
  TwoStats& two = *stats_from(w, head, q - q % 2);
  two.lse2.at[q % 2] = lse2;
  two.delta.at[q % 2] = sum;
}

// P of a query and a key (of its softmax, before dropout), dropout's factor, and dS.
struct RowGradient {
  float p, factor, ds;
};
__device__ inline RowGradient row_gradient(const AttentionWork& w, const HeadPlace& place,
                                           float slope, int q, int k, float score, float dp) {
  const QueryStats stats = stats_of_query(w, place.of_all, q);
  const float capped = row_score(w, score);
  const float x = capped + slope * static_cast<float>(k - q) - stats.lse2;
  RowGradient r = {exp2f(x), 1, 0};
  if (w.keep_from != 0) {
    const uint64_t element = place.first + static_cast<uint64_t>(int64_t{q} * w.seq + k);
    r.factor = is_kept(w, element) ? w.keep_scale : 0.0f;
  }
  r.ds = r.p * (dp * r.factor - stats.delta);
  if (w.inner != 0) {
    const float t = capped / w.scale2;
    r.ds *= 1 - t * t;
  }
  return r;
}

template <typename T>
__global__ void __launch_bounds__(kRowWarps* kWarp, 4) attention_query_rows(AttentionWork w) {
  MTL_DYNAMIC_SHARED(shared);
  RowPlace at;
  if (!row_of_warp(w, w.heads, 0, at)) return;
  know_pass(w);
  const HeadPlace place = place_of(w, at.b, at.head);
  const int lane = static_cast<int>(threadIdx.x % kWarp), dim = w.head_dim, q = at.row;
  const int value_dim = w.value_dim;
  float* const query = rows_of_warp(w, shared, 3, 1);
  float* const dout = query + dim;
  float* const sums = dout + dim;
  float* const weights = sums + dim;
  const T* const rows = static_cast<const T*>(w.qkv) + place.row * w.row_stride;
  const T* const keys = rows + key_column(w, place);
  const T* const values = rows + value_column<true>(w, place);
  const T* const dout_row =
      static_cast<const T*>(w.dout) + (place.row + q) * w.out_stride + out_column<true>(w, place);
  for (int d = lane; d < dim; d += static_cast<int>(kWarp)) {
    query[d] = to_float(rows[q * w.row_stride + query_column(w, place) + d]);
    sums[d] = 0;
  }
  for (int d = lane; d < value_dim; d += static_cast<int>(kWarp)) dout[d] = to_float(dout_row[d]);
  __syncwarp();
  const float slope = w.slopes != nullptr ? w.slopes[at.head] : 0.0f;
  const int low = first_seen(w, place.row, q);
  for (int first = low - low % static_cast<int>(kWarp); first <= q;
       first += static_cast<int>(kWarp)) {
    const int k = first + lane, count = min(static_cast<int>(kWarp), q + 1 - first);
    if (k < low) {
      weights[lane] = 0;
    } else if (k <= q) {
      const float score = dot(query, keys + k * w.row_stride, dim);
      const float dp = dot(dout, values + k * w.row_stride, value_dim);
      weights[lane] = row_gradient(w, place, slope, q, k, score, dp).ds;
    }
    __syncwarp();
    for (int d = lane; d < dim; d += static_cast<int>(kWarp)) {
      float sum = sums[d];
      for (int i = 0; i < count; ++i) {
        sum += weights[i] * to_float(keys[(first + i) * w.row_stride + d]);
      }
      sums[d] = sum;
    }
    __syncwarp();  // before the next weights
  }
  T* const dq = static_cast<T*>(w.dqkv) + (place.row + q) * w.row_stride + query_column(w, place);
  for (int d = lane; d < dim; d += static_cast<int>(kWarp)) {
    dq[d] = from_float<T>(sums[d] * w.scale);
  }
}

template <typename T>
__global__ void __launch_bounds__(kRowWarps* kWarp, 4) attention_key_rows(AttentionWork w) {
  MTL_DYNAMIC_SHARED(shared);
  RowPlace at;
  if (!row_of_warp(w, w.kv_heads, 0, at)) return;
  const int lane = static_cast<int>(threadIdx.x % kWarp), dim = w.head_dim, k = at.row;
  const int value_dim = w.value_dim;
  float* const key = rows_of_warp(w, shared, 4, 2);
  float* const value = key + dim;
  float* const key_sums = value + dim;
  float* const value_sums = key_sums + dim;
  float* const ds = value_sums + dim;
  float* const p = ds + kWarp;
  know_pass(w);
  const HeadPlace first_place = place_of(w, at.b, at.head * w.group);
  const T* const rows = static_cast<const T*>(w.qkv) + first_place.row * w.row_stride;
  for (int d = lane; d < dim; d += static_cast<int>(kWarp)) {
    key[d] = to_float(rows[k * w.row_stride + key_column(w, first_place) + d]);
    key_sums[d] = 0;
  }
  for (int d = lane; d < value_dim; d += static_cast<int>(kWarp)) {
    value[d] = to_float(rows[k * w.row_stride + value_column<true>(w, first_place) + d]);
    value_sums[d] = 0;
  }
  __syncwarp();
  const int end = is_limited(w) ? end_of_seeing(w, first_place.row, k) : w.seq;
  for (int member = 0; member < w.group; ++member) {
    const HeadPlace place = place_of(w, at.b, at.head * w.group + member);
    const float slope = w.slopes != nullptr ? w.slopes[place.head] : 0.0f;
    const T* const queries = rows + query_column(w, place);
    const T* const dout =
        static_cast<const T*>(w.dout) + place.row * w.out_stride + out_column<true>(w, place);
    for (int first = k; first < end; first += static_cast<int>(kWarp)) {
      const int q = first + lane, count = min(static_cast<int>(kWarp), end - first);
      if (q < end) {
        const float score = dot(key, queries + q * w.row_stride, dim);
        const float dp = dot(value, dout + q * w.out_stride, value_dim);
        const RowGradient r = row_gradient(w, place, slope, q, k, score, dp);
        ds[lane] = r.ds;
        p[lane] = r.p * r.factor;
      }
      __syncwarp();
      for (int d = lane; d < dim; d += static_cast<int>(kWarp)) {
        float key_sum = key_sums[d];
        for (int i = 0; i < count; ++i) {
          key_sum += ds[i] * to_float(queries[(first + i) * w.row_stride + d]);
        }
        key_sums[d] = key_sum;
      }
      for (int d = lane; d < value_dim; d += static_cast<int>(kWarp)) {
        float value_sum = value_sums[d];
        for (int i = 0; i < count; ++i) {
          value_sum += p[i] * to_float(dout[(first + i) * w.out_stride + d]);
        }
        value_sums[d] = value_sum;
      }
      __syncwarp();  // before the next ds and p
    }
  }
  T* const to = static_cast<T*>(w.dqkv) + (first_place.row + k) * w.row_stride;
  for (int d = lane; d < dim; d += static_cast<int>(kWarp)) {
    to[key_column(w, first_place) + d] = from_float<T>(key_sums[d] * w.scale);
  }
  for (int d = lane; d < value_dim; d += static_cast<int>(kWarp)) {
    to[value_column<true>(w, first_place) + d] = from_float<T>(value_sums[d]);
  }
}

}  // namespace mtl::cuda
