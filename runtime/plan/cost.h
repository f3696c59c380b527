// What a step costs: parameters, FLOPs, bytes per kind of link.
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "runtime/plan/grid.h"
#include "runtime/plan/model_shape.h"
#include "runtime/plan/shard_table.h"

namespace mtl {

struct Cost {
  int64_t parameters = 0;  // of the model (unpadded)
  int64_t tokens_per_step = 0;
  double flops_per_token =
      0;  // forward + backward, causal attention counted half; Megatron-LM training.py's formula
  double flops_per_step = 0;
  int64_t tp_bytes_per_step = 0;  // sent per rank, ring convention 2n(k-1)/k
  int64_t dp_bytes_per_step = 0;
};

Cost cost(const ModelShape& shape, const std::vector<ParamRow>& table, const GridSizes& sizes,
          const ParamLayout& layout, int64_t global_batch, int64_t micro_batch, int64_t seq,
          DType compute);

}  // namespace mtl
