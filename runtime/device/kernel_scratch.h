// What kernels of a GPU take for partial results, beside the tensors of an op: bytes by its shape.
// The kernels (cuda/) ask for their scratch by these functions, and the plan foretells with them
// what a rank's GPU needs beside the arena. Pure; of constants of kernels only what sizes follow
// from, and the kernels assert them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/dtype.h"

namespace mtl {

namespace kernel_scratch {

inline int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// A cutting of rows into chunks for sums over them: at least `least` rows each, at most `most`
// chunks. Of the shape alone, so that the order of the sums is, too.
struct RowChunks {
  RowChunks(int64_t total, int64_t least, int64_t most)
      : rows(std::max(least, divide_up(total, most))), count(divide_up(total, rows)) {}
  int64_t rows, count;
};

// Of sums over the rows of a matrix: at least 32 rows. A block has 256 columns of a chunk, in 16
// bits, and a GPU's multiprocessors have room for about 512 of them: so that all begin at once, and
// few sums are left to add.
inline RowChunks column_chunks(int64_t rows, int64_t cols) {
  return RowChunks(rows, 32, std::max<int64_t>(1, 512 / divide_up(cols, 256)));
}
inline int64_t column_sums(int64_t rows, int64_t cols) {
  return column_chunks(rows, cols).count * cols * 4;
}
// Gamma's sums and beta's. A block has a chunk, and is the narrower the fewer columns there are.
inline RowChunks norm_chunks(int64_t rows, int64_t cols) {
  int64_t most = 256;
  while (most < 2048 && most * cols <= (int64_t{1} << 18)) most *= 2;
  return RowChunks(rows, 32, most);
}
inline int64_t norm_backward(int64_t rows, int64_t cols) {
  return norm_chunks(rows, cols).count * 2 * cols * 4;
}
inline RowChunks head_norm_chunks(int64_t rows) {
  return RowChunks(rows, 32, 1024);
}
inline int64_t head_norm_backward(int64_t rows, int64_t head_dim) {
  return head_norm_chunks(rows).count * head_dim * 4;
}
inline RowChunks wide_norm_chunks(int64_t rows) {
  return RowChunks(rows, 32, 256);
}
inline int64_t wide_norm_backward(int64_t rows, int64_t columns) {
  return wide_norm_chunks(rows).count * columns * 4;
}
inline RowChunks routing_chunks(int64_t tokens) {
  return RowChunks(std::max<int64_t>(tokens, 1), 1024, 64);
}
inline int64_t route_experts(int64_t tokens, int64_t experts) {
  return routing_chunks(tokens).count * experts * 4;
}

// The sort of tokens by rows of the table: passes over digits, by chunks of tokens, from one list
// of (row, token) into another.
inline constexpr int64_t kSortDigits = 512, kSortItemBytes = 8;
inline int64_t sort_chunk(int64_t tokens) {
  constexpr int64_t kMostChunks = 64;
  return divide_up(divide_up(tokens, kMostChunks), 1024) * 1024;
}
inline int64_t sort_counts(int64_t tokens) {
  return tokens > 0 ? kSortDigits * divide_up(tokens, sort_chunk(tokens)) * 4 : 0;
}
inline int64_t embedding_backward(int64_t tokens) {
  return sort_counts(tokens) + 2 * tokens * kSortItemBytes;
}

// Attention, of the heads of a rank.
struct AttentionSize {
  int64_t batch = 0, seq = 0, heads = 0, head_dim = 0;
  int64_t value_dim = 0;  // 0 = head_dim
};
// The most queries that a tile has: as many statistics may be read behind a head's last query.
inline constexpr int64_t kMostQueries = 128;
inline int64_t stats_stride(int64_t seq) {
  return (seq + kMostQueries - 1 + 63) / 64 * 64;
}
// For each query its log-sum-exp and the sum of dO * O.
inline int64_t attention_stats(const AttentionSize& s) {
  return s.batch * s.heads * stats_stride(s.seq) * 8;
}
// Whether Hopper's kernels are for calls of this kind.
inline bool fits_warpgroups(DType dtype, const AttentionSize& s) {
  const bool compiled = s.head_dim == 64 || s.head_dim == 96 || s.head_dim == 128;
  return dtype != DType::f32 && compiled && s.seq >= 32 &&
         (s.value_dim == 0 || s.value_dim == s.head_dim);
}
// The same of those for heads beyond 128: DeepSeek's, of 192 with values of 128, and Gemma's 256.
inline bool fits_wide_warpgroups(DType dtype, const AttentionSize& s) {
  const int64_t values = s.value_dim == 0 ? s.head_dim : s.value_dim;
  const bool compiled =
      (s.head_dim == 192 && values == 128) || (s.head_dim == 256 && values == 256);
  return dtype != DType::f32 && compiled && s.seq >= 32;
}
// Which backward the narrower ones have: what is faster as far as it is measured, or as it is
// wished.
enum class Backward { measured, split };
// The heads that it has kernels for capped scores of: Gemma 2's.
constexpr bool takes_caps(int64_t head_dim) {
  return head_dim == 128 || head_dim == 256;
}

// Whether one kernel makes dQ, dK and dV (attention_backward_joint_warpgroups.cu), in sums of its
// own. Measured on an H200 (docs/benchmarks/gpu-h200.md), against two without sums: 7 to 31 % less
// time for backward with heads of 64 and 128. Two consumers cannot share the panels of 32 that
// heads of 96 have evenly.
inline bool adds_up(Backward backward, int64_t head_dim) {
  return backward == Backward::measured && head_dim != 96;
}
// The sums are f32, in tiles of 64 x 128 or 128 x 64 (queries x columns). Beside them lie turns,
// one of a tile, and one number for all.
inline constexpr int64_t kSumsOfTile = 64 * 128;
inline int64_t query_tiles(const AttentionSize& s) {  // of a head
  return divide_up(s.seq, kSumsOfTile / s.head_dim);
}
inline int64_t query_sums(const AttentionSize& s) {
  const int64_t tiles = s.batch * s.heads * query_tiles(s);
  return (tiles * kSumsOfTile + tiles + 1) * 4;
}
// The statistics lie behind the sums, if there are any, aligned; behind them ALiBi's slopes.
inline int64_t before_stats(const AttentionSize& s, bool sums) {
  return sums ? divide_up(query_sums(s), 16) * 16 : 0;
}
inline int64_t attention_backward(const AttentionSize& s, bool sums) {
  return before_stats(s, sums) + attention_stats(s) + s.heads * 4;
}

// The gradient of sinks: of each sequence the same chunks of rows, of at least 32. A block has a
// chunk of a few heads, and a GPU has room for about a thousand of them.
inline constexpr int64_t kSinkHeads = 4;
inline RowChunks sink_chunks(const AttentionSize& s) {
  const int64_t others = s.batch * divide_up(s.heads, kSinkHeads);
  return RowChunks(s.seq, 32, std::max<int64_t>(1, 1024 / others));
}
inline int64_t attention_sinks(const AttentionSize& s) {
  return s.batch * sink_chunks(s).count * s.heads * 4;
}

// What a device takes at once: it grows by whole pieces, and every device has one.
inline constexpr int64_t kPieceBytes = int64_t{1} << 20;
inline int64_t whole_pieces(int64_t bytes) {
  return std::max<int64_t>(1, divide_up(bytes, kPieceBytes)) * kPieceBytes;
}

}  // namespace kernel_scratch

// cuBLASLt's own memory, one piece per device: NVIDIA's recommendation for Hopper (cuBLAS
// documentation, "cublasSetWorkspace"); others want less.
inline constexpr int64_t kProductWorkspaceBytes = int64_t{32} << 20;

// The largest ops of a rank's steps, of those kernels that take scratch. What never takes a piece
// is left out: attention's forward, sums of losses, the largest value of a tensor.
struct KernelNeeds {
  DType compute = DType::f32;
  kernel_scratch::AttentionSize attention;
  int64_t attention_room = 0;  // AttentionBackward::room
  bool sinks = false;
  int64_t norm_rows = 0, norm_cols = 0;
  int64_t head_norm_rows = 0;  // 0 = heads have no norms
  int64_t wide_norm_rows = 0;  // 0 = they have none together
  int64_t wide_norm_cols = 0;
  struct Matrix {
    int64_t rows = 0, cols = 0;
  };
  std::vector<Matrix> latent_norms;  // what else is normalised
  std::vector<Matrix> biases;        // the gradients that biases are sums of
  int64_t routed_tokens = 0, experts = 0;
  int64_t embedded_rows = 0;
};

// The most that one op of them takes; `hopper`: its attention's backward, where there is one
// (Queue::has_warpgroups and hopper_backward).
inline int64_t most_scratch(const KernelNeeds& needs,
                            std::optional<kernel_scratch::Backward> hopper) {
  namespace of = kernel_scratch;
  const of::AttentionSize& attention = needs.attention;
  const bool fits = hopper.has_value() && of::fits_warpgroups(needs.compute, attention);
  const bool sums = fits && of::adds_up(*hopper, attention.head_dim);
  int64_t most = of::attention_backward(attention, sums);
  if (most <= needs.attention_room) most = 0;
  if (needs.sinks) most = std::max(most, of::attention_sinks(attention));
  if (needs.norm_rows > 0) {
    most = std::max(most, of::norm_backward(needs.norm_rows, needs.norm_cols));
  }
  if (needs.head_norm_rows > 0) {
    most = std::max(most, of::head_norm_backward(needs.head_norm_rows, attention.head_dim));
  }
  if (needs.wide_norm_rows > 0) {
    most = std::max(most, of::wide_norm_backward(needs.wide_norm_rows, needs.wide_norm_cols));
  }
  for (const KernelNeeds::Matrix& x : needs.latent_norms) {
    if (x.cols > 0) most = std::max(most, of::norm_backward(x.rows, x.cols));
  }
  for (const KernelNeeds::Matrix& x : needs.biases) {
    most = std::max(most, of::column_sums(x.rows, x.cols));
  }
  if (needs.experts > 0) {
    most = std::max(most, of::route_experts(needs.routed_tokens, needs.experts));
  }
  return std::max(most, of::embedding_backward(needs.embedded_rows));
}

}  // namespace mtl
