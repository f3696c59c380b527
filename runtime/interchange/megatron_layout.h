// Megatron-LM's tensors of one rank, and which parts of our parameters they hold. Import reads by
// this table, export writes by it. Facts from megatron/core (names, fused projections):
//   linear_qkv  per key head: its query heads' rows, then its key rows, then its value rows
//   linear_fc1  of SwiGLU: the rank's gate rows, then the rank's up rows
//   matrices    [out, in]; GPT-2's public ones are [in, out]
//   vocabulary  padded, and then divided evenly
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/checkpoint/rectangles.h"
#include "runtime/plan/shard_table.h"

namespace mtl {

struct MegatronPart {
  size_t row = 0;  // of shard_table(shape, false)
  Rect rect;       // of the parameter
  Dims at;         // in Megatron's tensor, in its axes
  bool transposed = false;
};

struct MegatronTensor {
  std::string name;  // Megatron core's: "decoder.layers.0.mlp.linear_fc1.weight"
  Dims shape;
  std::vector<MegatronPart> parts;
  bool replicated = false;  // over TP
};

// Its values, of parameters as `read` has them; 0 where there are none.
std::vector<float> assemble(const MegatronTensor& tensor, const std::vector<ParamRow>& table,
                            const std::function<std::vector<float>(const ParamRow&)>& read);

// The part of the model that a rank holds.
struct MegatronRank {
  int64_t tp = 1, tp_rank = 0;
  int64_t first_layer = 0, layers = 0;
  bool embedding = true, head = true;
  int64_t vocab_rows = 0;  // of each TP rank, padding included
};

// `shape` has no experts, heads and inner width divide by tp.
std::vector<MegatronTensor> megatron_tensors(const ModelShape& shape,
                                             const std::vector<ParamRow>& table,
                                             const MegatronRank& rank);
// What keeps a model from being laid out so; empty = nothing.
std::string megatron_obstacle(const ModelShape& shape, int64_t tp);

}  // namespace mtl
