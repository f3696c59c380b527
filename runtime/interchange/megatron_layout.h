// Megatron-LM's tensors of one rank, and which parts of our parameters they hold. Import reads by
// this table, export writes by it. Facts from megatron/core (names, fused projections):
//   linear_qkv  per key head: its query heads' rows, then its key rows, then its value rows
//   linear_fc1  of SwiGLU: the rank's gate rows, then the rank's up rows
//   matrices    [out, in]; GPT-2's public ones are [in, out]
//   vocabulary  padded, and then divided evenly
#pragma once

#include <string>
#include <vector>

#include "runtime/interchange/foreign_tensor.h"
#include "runtime/plan/shard_table.h"

namespace mtl {

// The part of the model that a rank holds.
struct MegatronRank {
  int64_t tp = 1, tp_rank = 0;
  int64_t first_layer = 0, layers = 0;
  bool embedding = true, head = true;
  int64_t vocab_rows = 0;  // of each TP rank, padding included
};

// `shape` has no experts, heads and inner width divide by tp.
std::vector<ForeignTensor> megatron_tensors(const ModelShape& shape,
                                            const std::vector<ParamRow>& table,
                                            const MegatronRank& rank);
// What keeps a model from being laid out so; empty = nothing.
std::string megatron_obstacle(const ModelShape& shape, int64_t tp);

}  // namespace mtl
