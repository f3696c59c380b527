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
  std::string name;  // public: Hugging Face's name for the family, e.g.
                     // "transformer.h.0.attn.c_attn.weight"
  std::string slot;  // what its block calls it: "attn.qkv.weight"
  int layer = -1;    // 0..L-1; -1 = embedding, L = final norm and head
  std::vector<int64_t>
      shape;  // global and unpadded; also the layout in memory (row-major) and in checkpoints
  int64_t padded_rows =
      0;  // rows in memory over all TP ranks when more than shape[0] (vocabulary), else shape[0]
  int tp_axis = -1;  // dimension split over TP; -1 = replicated
  int segments = 1;  // the split axis holds this many equal parts, each split on its own (QKV: 3)
  AxisSet replicated_over;  // axes whose ranks hold the same values
  AxisSet grad_sum_over;    // axes over which partial gradients are summed
  bool decays = false;      // weight decay applies (parameters of two or more dimensions)
  InitKind init = InitKind::normal;
  double init_std = 0;

  int64_t numel() const;  // global, unpadded
};

// A rectangle of a parameter: where it lies in the global tensor and in the rank's local tensor.
struct ParamRect {
  std::vector<int64_t> global_offset;
  std::vector<int64_t> local_offset;
  std::vector<int64_t> extent;
};

// Rows in forward order: token embedding, positions, layers, final norm, head (absent when tied).
std::vector<ParamRow> shard_table(const ModelShape& shape);
// The row of a block's slot; nullptr if the model has none (a bias of a model without biases).
const ParamRow* find_row(const std::vector<ParamRow>& table, int layer, const std::string& slot);

// The vocabulary is split into equal runs of rows, padding at the end, so that every rank's buffers
// have the same shape (and offset) whatever its position: rank r owns ids [first, first + valid).
struct VocabShard {
  int64_t rows = 0;   // in memory
  int64_t first = 0;  // first id
  int64_t valid = 0;  // ids owned; the remaining rows are padding
};
VocabShard vocab_shard(const ModelShape& shape, int tp, int tp_rank);

// The tensor that each rank holds (padding included); the same on every rank of the group.
std::vector<int64_t> local_shape(const ParamRow& row, const GridSizes& sizes);
// Its rectangles in the global tensor (padding excluded): together, over the ranks of a replica,
// they tile it exactly.
std::vector<ParamRect> local_rects(const ParamRow& row, const GridSizes& sizes, const Coord& coord);

// Where each local parameter lies in the flat buffers (weights, master, gradients, moments all use
// the same offsets).
struct ParamPlacement {
  size_t row = 0;  // index into the shard table
  std::vector<int64_t> shape;
  int64_t offset = 0;  // elements, a multiple of 64
  int64_t numel = 0;
};
struct ParamLayout {
  std::vector<ParamPlacement> params;  // in table order
  int64_t total = 0;                   // elements of a flat buffer, a multiple of 64
};
ParamLayout param_layout(const std::vector<ParamRow>& table, const GridSizes& sizes);

}  // namespace mtl
