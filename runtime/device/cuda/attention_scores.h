// Attention between its products: what happens to scores and their gradients while they are sums in
// registers, of 16 kM rows by 8 kN columns of a warp, in the layout of mma_m16n8k16's d (gpu.h),
// which is wgmma's too. A sum [m][n][i] of a lane is row 16 m + 8 (i / 2) + lane / 4, column
// 8 n + 2 (lane % 4) + i % 2.
//
// Rounded, these sums have the layout that operand A of the next product needs, so they never leave
// registers.
#pragma once

#include <type_traits>

#include "runtime/device/cuda/attention.h"

namespace mtl::cuda {

// Sums [n] of a product, rounded: [n][half] as operand A has them.
template <int kM, int kN>
using PackedSums = uint32_t[kM][kN][2];

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

// What only some calls or tiles need has a loop of its own below a condition that the whole warp
// shares: inside the loop that all need, nvcc computes it for every sum of every tile and then
// chooses (docs/benchmarks/gpu-instructions.md).

// Scores, in units of 1 / factor of log2, of 16 kM queries and 8 kN keys, the first of which for
// this lane are `distance` (key - query) apart: ALiBi, and what a query may not see. Returns the
// factor.
template <int kM, int kN>
__device__ inline float finish_scores(const AttentionWork& w, float slope, float (&s)[kM][kN][4],
                                      int distance, bool diagonal) {
  const auto each = [&](auto body) {
    MTL_UNROLL()
    for (int m = 0; m < kM; ++m) {
      MTL_UNROLL()
      for (int n = 0; n < kN; ++n) {
        MTL_UNROLL()
        for (int i = 0; i < 4; ++i) body(8 * n + i % 2 - (16 * m + i / 2 * 8), s[m][n][i]);
      }
    }
  };
  if (w.slopes != nullptr) {
    each([&](int more, float& x) {
      x = fmaf(x, w.scale2, slope * static_cast<float>(distance + more));
    });
  }
  if (diagonal) {
    each([&](int more, float& x) {
      if (distance > -more) x = -INFINITY;
    });
  }
  return w.slopes != nullptr ? 1.0f : w.scale2;
}

// Scores become the tanh that a cap takes of them; scale2 is the cap's then.
template <int kN>
__device__ inline void cap_scores(const AttentionWork& w, float (&s)[kN][4]) {
  MTL_UNROLL()
  for (int n = 0; n < kN; ++n) {
    MTL_UNROLL()
    for (int i = 0; i < 4; ++i) s[n][i] = tanh_of(s[n][i] * w.inner);
  }
}
template <int kM, int kN>
__device__ inline void cap_scores(const AttentionWork& w, float (&s)[kM][kN][4]) {
  if (w.inner == 0) return;
  MTL_UNROLL()
  for (int m = 0; m < kM; ++m) cap_scores(w, s[m]);
}
// The derivative of a cap where a weight P is: the tanh follows from it, and no register has to
// keep it. A weight of 0 has no gradient.
__device__ inline float slope_of_cap(const AttentionWork& w, float weight, float lse2) {
  const float t = (log2_of(weight) + lse2) / w.scale2;
  return weight > 0 ? 1 - t * t : 0.0f;
}

// Hides what queries do not see at the other end, of 16 kM rows of queries and 8 kN columns of
// keys, of which `q` and `k` are this lane's first ones. `factor`: what the scores are multiplied
// by next.
template <int kM, int kN>
__device__ inline void hide_keys(const AttentionWork& w, int64_t row, float (&s)[kM][kN][4], int q,
                                 int k, float factor) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int last = min(q - lane / 4 + 16 * kM, w.seq) - 1;  // of the warp's queries
  if (first_seen(w, row, last) <= k - lane % 4 * 2) return;
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

// Which sums dropout keeps, of 16 rows (a single m).
template <int kN>
struct Kept {
  uint32_t words[(kN + 7) / 8];
  __device__ bool at(int n, int i) const { return (words[n / 8] >> (4 * (n % 8) + i) & 1) != 0; }
};

// Of rows and columns from element `first` on. kQueryRows: rows are queries and columns keys, else
// the other way round. Where the sequence is a multiple of 4, the four keys of a counter belong to
// neighbouring lanes, and each of these computes another counter for all of them.
template <bool kQueryRows, int kN>
__device__ inline Kept<kN> kept_of_sums(const AttentionWork& w, uint64_t first) {
  const uint32_t lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const auto seq = static_cast<uint64_t>(w.seq);
  Kept<kN> kept;
  MTL_UNROLL()
  for (uint32_t word = 0; word < (kN + 7) / 8; ++word) {
    uint32_t bits = 0;
    MTL_UNROLL(1)
    for (uint32_t n = 8 * word; n < min(8 * word + 8, uint32_t{kN}); ++n) {
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
      bits |= four << (4 * (n % 8));
    }
    kept.words[word] = bits;
  }
  return kept;
}

// --- forward

// The softmax of rows of queries over keys that come tile by tile: the largest score so far, in
// units of log2, and the lane's share of the sum, of each of its rows.
template <int kM>
struct RunningSoftmax {
  float top[kM][2], total[kM][2];

  __device__ void clear() {
    MTL_UNROLL()
    for (int m = 0; m < kM; ++m) {
      top[m][0] = top[m][1] = -INFINITY;
      total[m][0] = total[m][1] = 0;
    }
  }

  // Scores, in units of 1 / factor of log2, become weights. `before`: what the sums of earlier
  // tiles are to be multiplied by. Returns whether that is anything but 1, of the whole warp:
  // mostly the maximum is found within a few tiles.
  template <int kN>
  __device__ bool add(float (&s)[kM][kN][4], float factor, float (&before)[kM][2]) {
    bool rescale = false;
    MTL_UNROLL()
    for (int m = 0; m < kM; ++m) {
      MTL_UNROLL()
      for (int half = 0; half < 2; ++half) {
        float most = -INFINITY;
        MTL_UNROLL()
        for (int n = 0; n < kN; ++n) {
          most = fmaxf(most, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
        }
        most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
        most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
        const float new_top = fmaxf(top[m][half], most * factor);
        before[m][half] = exp2_of(top[m][half] - new_top);
        rescale = rescale || before[m][half] != 1.0f;
        top[m][half] = new_top;
        float sum = 0;
        MTL_UNROLL()
        for (int n = 0; n < kN; ++n) {
          MTL_UNROLL()
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            s[m][n][i] = exp2_of(fmaf(s[m][n][i], factor, -new_top));
            sum += s[m][n][i];
          }
        }
        total[m][half] = fmaf(total[m][half], before[m][half], sum);
      }
    }
    return __any_sync(kAllLanes, rescale ? 1 : 0) != 0;
  }

  // Writes the log-sum-exp of a lane's rows, the first of which is query q, and returns what O is
  // to be multiplied by. T: of qkv.
  template <typename T>
  __device__ void finish(const AttentionWork& w, const HeadPlace& place, int q,
                         float (&factor)[kM][2]) const {
    const float sink = sink_of<T>(w, place.head);
    MTL_UNROLL()
    for (int m = 0; m < kM; ++m) {
      MTL_UNROLL()
      for (int half = 0; half < 2; ++half) {
        float sum = total[m][half];
        sum += __shfl_xor_sync(kAllLanes, sum, 1);
        sum += __shfl_xor_sync(kAllLanes, sum, 2);
        float most = top[m][half], before = 1;
        if (w.sinks != nullptr) before = count_sink(sink, most, sum);
        factor[m][half] = w.keep_scale * before / sum;
        const int row = q + 16 * m + 8 * half;
        if (threadIdx.x % 4 == 0 && row < w.seq) {
          w.lse[place.of_all * w.seq + row] = most * kLn2 + logf(sum);
        }
      }
    }
  }
};

// Sums times a factor of each row.
template <int kM, int kN>
__device__ inline void scale_rows(float (&c)[kM][kN][4], const float (&factor)[kM][2]) {
  MTL_UNROLL()
  for (int m = 0; m < kM; ++m) {
    MTL_UNROLL()
    for (int n = 0; n < kN; ++n) {
      MTL_UNROLL()
      for (int i = 0; i < 4; ++i) c[m][n][i] *= factor[m][i / 2];
    }
  }
}

// Weights as operand A, less those that dropout drops. `first`: dropout's element of the first row
// and column of the warp.
template <typename T, int kM, int kN>
__device__ inline void pack_weights(const AttentionWork& w, uint64_t first, float (&s)[kM][kN][4],
                                    PackedSums<kM, kN>& p) {
  MTL_UNROLL()
  for (int m = 0; m < kM; ++m) {
    if (w.keep_from != 0) {
      const uint64_t row = static_cast<uint64_t>(16 * m) * static_cast<uint64_t>(w.seq);
      const Kept<kN> kept = kept_of_sums<true, kN>(w, first + row);
      MTL_UNROLL()
      for (int n = 0; n < kN; ++n) {
        MTL_UNROLL()
        for (int i = 0; i < 4; ++i) {
          if (!kept.at(n, i)) s[m][n][i] = 0;
        }
      }
    }
    MTL_UNROLL()
    for (int n = 0; n < kN; ++n) {
      p[m][n][0] = pack_two<T>(s[m][n][0], s[m][n][1]);
      p[m][n][1] = pack_two<T>(s[m][n][2], s[m][n][3]);
    }
  }
}

// --- backward

// Scores of rows of queries become weights: P = exp2(factor S - lse2).
template <int kM, int kN>
__device__ inline void query_weights(float (&s)[kM][kN][4], float factor,
                                     const QueryStats (&stats)[kM][2]) {
  MTL_UNROLL()
  for (int m = 0; m < kM; ++m) {
    MTL_UNROLL()
    for (int n = 0; n < kN; ++n) {
      MTL_UNROLL()
      for (int i = 0; i < 4; ++i) {
        s[m][n][i] = exp2_of(fmaf(s[m][n][i], factor, -stats[m][i / 2].lse2));
      }
    }
  }
}

// With a cap: weights of rows of queries times its derivative.
template <int kM, int kN>
__device__ inline void cap_query_weights(const AttentionWork& w, float (&weights)[kM][kN][4],
                                         const QueryStats (&stats)[kM][2]) {
  if (w.inner == 0) return;
  MTL_UNROLL()
  for (int m = 0; m < kM; ++m) {
    MTL_UNROLL()
    for (int n = 0; n < kN; ++n) {
      MTL_UNROLL()
      for (int i = 0; i < 4; ++i) {
        weights[m][n][i] *= slope_of_cap(w, weights[m][n][i], stats[m][i / 2].lse2);
      }
    }
  }
}

// dS = P (dP - delta) as operand A, of rows of queries; dP as dropout has let it through.
template <typename T, int kM, int kN>
__device__ inline void pack_query_gradients(const AttentionWork& w, uint64_t first,
                                            const float (&weights)[kM][kN][4],
                                            float (&dp)[kM][kN][4],
                                            const QueryStats (&stats)[kM][2],
                                            PackedSums<kM, kN>& ds) {
  MTL_UNROLL()
  for (int m = 0; m < kM; ++m) {
    if (w.keep_from != 0) {
      const uint64_t row = static_cast<uint64_t>(16 * m) * static_cast<uint64_t>(w.seq);
      const Kept<kN> kept = kept_of_sums<true, kN>(w, first + row);
      MTL_UNROLL()
      for (int n = 0; n < kN; ++n) {
        MTL_UNROLL()
        for (int i = 0; i < 4; ++i) {
          dp[m][n][i] = kept.at(n, i) ? dp[m][n][i] * w.keep_scale : 0.0f;
        }
      }
    }
    MTL_UNROLL()
    for (int n = 0; n < kN; ++n) {
      float x[4];
      MTL_UNROLL()
      for (int i = 0; i < 4; ++i) {
        x[i] = weights[m][n][i] * (dp[m][n][i] - stats[m][i / 2].delta);
      }
      ds[m][n][0] = pack_two<T>(x[0], x[1]);
      ds[m][n][1] = pack_two<T>(x[2], x[3]);
    }
  }
}

// Of the two queries of an octet that are a lane's, from a tile's statistics in shared memory.
__device__ inline const TwoStats& stats_of_columns(const TwoStats* stats, int n) {
  return stats[4 * n + static_cast<int>(threadIdx.x % 4)];
}

// Scores of 16 rows of keys, the first of which is `key`, and 8 kN columns, the queries from `q`
// on, become weights: P = exp2(S - lse2).
template <bool kLimited, int kN>
__device__ inline void key_weights(const AttentionWork& w, const HeadPlace& place, int q, int key,
                                   const TwoStats* stats, float (&s)[kN][4]) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int query = q + lane % 4 * 2, own_key = key + lane / 4;  // of s[0][0]
  const auto each = [&](auto body) {
    MTL_UNROLL()
    for (int n = 0; n < kN; ++n) {
      MTL_UNROLL()
      for (int i = 0; i < 4; ++i) body(8 * n + i % 2 - i / 2 * 8, s[n][i]);
    }
  };
  MTL_UNROLL()
  for (int n = 0; n < kN; ++n) {
    const Pack<float, 2> lse2 = stats_of_columns(stats, n).lse2;
    MTL_UNROLL()
    for (int i = 0; i < 4; ++i) s[n][i] = fmaf(s[n][i], w.scale2, -lse2.at[i % 2]);
  }
  const int behind = query - own_key;
  if (w.slopes != nullptr) {
    const float slope = w.slopes[place.head];
    each([&](int more, float& x) { x = fmaf(-slope, static_cast<float>(behind + more), x); });
  }
  if (q < key + 15) {
    each([&](int more, float& x) {
      if (behind < -more) x = -INFINITY;
    });
  }
  if constexpr (kLimited) {
    if (first_seen(w, place.row, min(q + 8 * kN, w.seq) - 1) > key) {
      MTL_UNROLL()
      for (int n = 0; n < kN; ++n) {
        MTL_UNROLL()
        for (int i = 0; i < 4; ++i) {
          const int low = first_seen(w, place.row, min(query + 8 * n + i % 2, w.seq - 1));
          if (own_key + i / 2 * 8 < low) s[n][i] = -INFINITY;
        }
      }
    }
  }
  each([](int, float& x) { x = exp2_of(x); });
}

// P, less what dropout drops, and dS = P (dP - delta), times the derivative of a cap where the call
// may have one, as operands A, of keys x queries.
template <typename T, bool kCaps = false, int kN>
__device__ inline void pack_key_sums(const AttentionWork& w, const Kept<kN>& kept,
                                     const TwoStats* stats, const float (&weights)[kN][4],
                                     const float (&dp)[kN][4], uint32_t (&p)[kN][2],
                                     uint32_t (&ds)[kN][2]) {
  const auto pack = [&](auto drops) {
    MTL_UNROLL()
    for (int n = 0; n < kN; ++n) {
      const Pack<float, 2> delta = stats_of_columns(stats, n).delta;
      float weight[4], gradient[4];
      MTL_UNROLL()
      for (int i = 0; i < 4; ++i) {
        weight[i] = weights[n][i];
        gradient[i] = dp[n][i];
        if constexpr (decltype(drops)::value) {
          weight[i] = kept.at(n, i) ? weight[i] : 0.0f;
          gradient[i] = kept.at(n, i) ? gradient[i] * w.keep_scale : 0.0f;
        }
        gradient[i] = weights[n][i] * (gradient[i] - delta.at[i % 2]);
      }
      if constexpr (kCaps) {
        const Pack<float, 2> lse2 = stats_of_columns(stats, n).lse2;
        MTL_UNROLL()
        for (int i = 0; i < 4; ++i) {
          gradient[i] *= slope_of_cap(w, weights[n][i], lse2.at[i % 2]);
        }
      }
      MTL_UNROLL()
      for (int half = 0; half < 2; ++half) {
        p[n][half] = pack_two<T>(weight[2 * half], weight[2 * half + 1]);
        ds[n][half] = pack_two<T>(gradient[2 * half], gradient[2 * half + 1]);
      }
    }
  };
  if (w.keep_from != 0) {
    pack(std::true_type{});
  } else {
    pack(std::false_type{});
  }
}

}  // namespace mtl::cuda
