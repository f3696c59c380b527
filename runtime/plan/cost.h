// What a step costs: parameters and FLOPs.
#pragma once

#include <cstdint>

#include "runtime/plan/model_shape.h"
#include "runtime/plan/shard_table.h"

namespace mtl {

struct Cost {
  int64_t parameters = 0;         // of the model (unpadded)
  int64_t trained = 0;            // of these: beside adapters only theirs
  int64_t active_parameters = 0;  // those that a token meets: of experts, the chosen ones'
  // Forward and backward, of which what is not trained has no products for its own gradient; causal
  // attention counted half: the formula of Megatron-LM's training.py.
  double flops_per_token = 0;
};

Cost cost(const ModelShape& shape, const std::vector<ParamRow>& table, int64_t seq);

// FLOPs of one layer for a token, counted alike: what an uneven pipeline is drawn and judged with.
// Where the model has a window, of a layer with it.
double flops_per_token_of_layer(const ModelShape& shape, int64_t seq);
// Of layers [begin, end), of every kind.
double flops_per_token_of_layers(const ModelShape& shape, int64_t seq, int64_t begin, int64_t end);
// The layers of each of so many virtual stages, for the same work everywhere, the head's included;
// there are as many layers at least.
std::vector<int64_t> balanced_stages(const ModelShape& shape, int64_t seq, int virtual_stages);
double flops_per_token_of_head(const ModelShape& shape);
// What of these a forward pass is: a third, or a half where the products for the gradients of
// weights are left out.
inline double forward_part(const ModelShape& shape) {
  return shape.lora ? 1.0 / 2 : 1.0 / 3;
}

}  // namespace mtl
