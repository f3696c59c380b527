// What a step costs: parameters and FLOPs.
#pragma once

#include <cstdint>

#include "runtime/plan/model_shape.h"
#include "runtime/plan/shard_table.h"

namespace mtl {

struct Cost {
  int64_t parameters = 0;         // of the model (unpadded)
  int64_t active_parameters = 0;  // those that a token meets: of experts, the chosen ones'
  double flops_per_token =
      0;  // forward + backward, causal attention counted half; Megatron-LM training.py's formula
};

Cost cost(const ModelShape& shape, const std::vector<ParamRow>& table, int64_t seq);

// The share of a chunk in a token's FLOPs: what an uneven pipeline is drawn and judged with.
double flops_per_token_of_layer(const ModelShape& shape, int64_t seq);
double flops_per_token_of_head(const ModelShape& shape);

}  // namespace mtl
