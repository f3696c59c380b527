// What a step costs: parameters, FLOPs, bytes per kind of link.
#pragma once

#include <cstdint>

#include "runtime/plan/grid.h"
#include "runtime/plan/model_shape.h"

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

}  // namespace mtl
