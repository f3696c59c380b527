// The shard table: ONE row per parameter with everything that anybody needs to know of it: how it
// is split, over which groups it is replicated, over which its gradient is reduced, whether it
// decays, how it is initialised. Initialisation, gradient sync, clip norm, optimizer ranges,
// checkpoints, export and memory are computed from here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/plan/grid.h"
#include "runtime/plan/model_shape.h"

namespace mtl {

enum class InitKind { normal, zeros, ones };

struct ParamRow {
  // Public: Hugging Face's name for the family, e.g. "transformer.h.0.attn.c_attn.weight".
  std::string name;
  // What its block calls it: "attn.qkv.weight". Rows that follow each other and share a slot lie
  // in memory as one tensor, concatenated along the first dimension (Q, K and V; gate and up).
  std::string slot;
  int layer = -1;  // 0..L-1; -1 = embedding, L = final norm and head
  // Global and unpadded; also the layout in memory (row-major) and in checkpoints.
  std::vector<int64_t> shape;
  // Rows in memory over all TP ranks when more than shape[0] (vocabulary), else shape[0].
  int64_t padded_rows = 0;
  bool out_in = false;  // a matrix is stored [out, in] (torch's Linear), else [in, out] (Conv1D)
  int tp_axis = -1;     // dimension split over TP; -1 = replicated
  int segments = 1;  // the split axis holds this many equal parts, each split on its own (QKV: 3)
  // The split axis has this many units that cannot be divided (KV heads); with fewer units than TP
  // ranks, neighbours hold copies of one. 0 = every element.
  int64_t units = 0;
  AxisSet replicated_over;  // axes whose ranks hold the same values
  // Axes over which partial gradients are summed. TP stands here when each TP rank that holds a
  // copy has the gradient of its own tokens (sequence parallelism) or of its own heads only.
  AxisSet grad_sum_over;
  // An expert's bias (model.moe.expert_bias): it has no gradient, and all ranks have all of them,
  // in the buffer kExpertBias. It is in no bucket.
  bool balances = false;
  int expert = -1;      // of which this is a parameter: on the ranks with ep_rank = expert % ep
  bool frozen = false;  // stays as it is: beside adapters (ModelShape::lora) all else does
  bool decays = false;  // weight decay applies (parameters of two or more dimensions)
  // One matrix of a layer, or as many side by side as it has segments: what Muon orthogonalizes.
  bool matrix = false;
  InitKind init = InitKind::normal;
  double init_std = 0;

  int64_t numel() const;  // global, unpadded
};

// Behind the slot of a linear: the two matrices of its adapter, [rank, in] and [out, rank].
inline constexpr const char* kAdapterIn = ".lora_a";
inline constexpr const char* kAdapterOut = ".lora_b";

bool is_adapter(const ParamRow& row);

// A matrix that has an adapter, and the two of that.
struct AdaptedRow {
  const ParamRow *weight, *a, *b;
};
// All of `table`, which they point into, in its order.
std::vector<AdaptedRow> adapted_rows(const std::vector<ParamRow>& table);

// The slot of a linear of an expert: "mlp.expert3.up".
std::string expert_slot(int64_t expert, const char* linear);

// A rectangle of a parameter: where it lies in the global tensor and in the rank's local tensor.
struct ParamRect {
  std::vector<int64_t> global_offset;
  std::vector<int64_t> local_offset;
  std::vector<int64_t> extent;
};

// Rows in forward order: token embedding, positions, layers, final norm, head (absent when tied).
std::vector<ParamRow> shard_table(const ModelShape& shape, bool sequence_parallel);

// The vocabulary is split into equal runs of rows, padding at the end, so that every rank's buffers
// have the same shape (and offset) whatever its position: rank r owns ids [first, first + valid).
struct VocabShard {
  int64_t rows = 0;   // in memory
  int64_t first = 0;  // first id
  int64_t valid = 0;  // ids owned; the remaining rows are padding
};
VocabShard vocab_shard(const ModelShape& shape, int tp, int tp_rank);

// KV heads of a TP rank: kv_heads / tp, or one that it shares with neighbours.
int64_t local_kv_heads(const ModelShape& shape, int tp);

// How many TP ranks (neighbours) hold the same part of a row: all of a replicated one, tp / units
// of one with fewer units than ranks, else 1. The one with tp_rank % copies == 0 counts: it writes
// checkpoints and adds to the norm.
int tp_copies(const ParamRow& row, int tp);

// The tensor that each rank holds (padding included); the same on every rank of the group.
std::vector<int64_t> local_shape(const ParamRow& row, const GridSizes& sizes);
// Its rectangles in the global tensor (padding excluded): together, over the ranks of a replica,
// they tile it exactly.
std::vector<ParamRect> local_rects(const ParamRow& row, const GridSizes& sizes, const Coord& coord);
// What of `rects` lies in elements [first, first + count) of the flattened local tensor.
std::vector<ParamRect> clip_to_range(const std::vector<ParamRect>& rects,
                                     const std::vector<int64_t>& local, int64_t first,
                                     int64_t count);

}  // namespace mtl
