// What is done to the scores of block (i, j) of queries and keys, [key][query], besides the
// softmax: dropout, ALiBi, and what a query does not see.
#pragma once

#include "runtime/device/cpu/kernels/attention_kernels.h"
#include "runtime/device/cpu/kernels/attention_packing.h"
#include "runtime/device/cpu/kernels/attention_philox.h"
#include "runtime/device/cpu/kernels/matmul_math.h"

namespace mtl {
namespace {

constexpr float kMasked = -1e30f;  // a score that exp2 turns into 0

inline int64_t rows_in(const AttentionTask& t, int64_t block) {
  return t.seq - block * kB < kB ? t.seq - block * kB : kB;
}

// mask[key][query] = keep_scale where the element is kept, else 0, for block (i, j) of queries and
// keys of the head whose elements start at `first`.
inline void dropout_block(const AttentionTask& t, uint64_t first, int64_t i, int64_t j,
                          float* mask) {
  const int64_t rows = rows_in(t, i);
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

// Scores of a block, which `scale` multiplies next, as the cap leaves them.
inline void cap_scores(const AttentionTask& t, float* s) {
  const float inner = t.scale / t.cap, outer = t.cap / t.scale;
  for (int64_t e = 0; e < kB * kB; ++e) s[e] = outer * tanh_fast(s[e] * inner);
}

// ALiBi in block (i, j) of queries and keys: scores += slope * (key - query).
inline void add_alibi(float slope, int64_t i, int64_t j, float* s) {
  float query[kB];
  for (int64_t c = 0; c < kB; ++c) query[c] = static_cast<float>(i * kB + c);
  for (int64_t r = 0; r < kB; ++r) {
    const float key = static_cast<float>(j * kB + r);
    for (int64_t c = 0; c < kB; ++c) s[r * kB + c] += slope * (key - query[c]);
  }
}

// Sets what a causal block on the diagonal may not see.
inline void mask_diagonal(float* s) {
  for (int64_t r = 1; r < kB; ++r) {
    for (int64_t c = 0; c < r; ++c) s[r * kB + c] = kMasked;
  }
}

// The first key that a query sees; it does not fall from one query to the next.
inline int64_t first_seen(const AttentionTask& t, int64_t query) {
  if (query >= t.seq) query = t.seq - 1;  // padding
  int64_t first = t.first_key == nullptr ? 0 : t.first_key[query];
  if (t.window > 0 && query - t.window + 1 > first) first = query - t.window + 1;
  return first;
}
// The first block of keys that some query of block i sees.
inline int64_t first_block_seen(const AttentionTask& t, int64_t i) {
  return first_seen(t, i * kB) / kB;
}

// Sets what the queries of block i may not see of the keys of block j because it is too old. To a
// query from which it is hidden as a whole it adds nothing.
inline void mask_unseen(const AttentionTask& t, int64_t i, int64_t j, float* s) {
  if (first_seen(t, i * kB + kB - 1) <= j * kB) return;
  for (int64_t c = 0; c < kB; ++c) {
    int64_t hidden = first_seen(t, i * kB + c) - j * kB;
    if (hidden > kB) hidden = kB;
    for (int64_t r = 0; r < hidden; ++r) s[r * kB + c] = kMasked;
  }
}

}  // namespace
}  // namespace mtl
