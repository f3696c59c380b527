// How much memory a model takes as it is, and to train, without activations: two numbers that
// people ask for before there is a train.yaml. What a run really takes on each rank is memory.h's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "runtime/plan/model_shape.h"

namespace mtl {

// A row of accelerate's `estimate-memory`, in bytes. As there: the body of the model without an
// output layer of its own (transformers' AutoModel), the masks that GPT-2's layers keep beside
// their weights, and "largest layer" for the larger of the embedding and one block. Training is
// batch size 1 without activations: 4 x the weights in float32 (weights, gradients and two
// moments), 2 x the float32 weights in float16 (the moments, its largest part); other types are not
// trained. Source: accelerate 0.32.1, commands/estimate.py.
struct DtypeEstimate {
  std::string dtype;  // float32, float16, int8, int4
  double largest_layer = 0;
  double total = 0;
  std::optional<double> training;
};

// Bytes per GPU of the states that training keeps, all parameters counted, the output layer too,
// with the model divided over nothing but the N data-parallel GPUs. `stage` of ZeRO (S. Rajbhandari
// et al., arXiv 1910.02054, section 3 and figure 1): Adam in mixed precision keeps 2 + 2 + 12 bytes
// per parameter (weights, gradients; fp32 weights and two moments), in fp32 4 + 4 + 8; stage 1
// divides the last term by N, stage 2 also gradients, stage 3 also weights.
struct ZeroEstimate {
  int stage = 0;
  double weights = 0, gradients = 0, optimizer = 0;
  // The same as mtl keeps it, which has gradients in fp32 (Megatron's 6 + 12/N in mixed precision).
  // What stages 2 and 3 have whole for a while, two layers and the ends of the model, comes on top.
  double mtl = 0;
  double total() const { return weights + gradients + optimizer; }
};

struct MemoryEstimate {
  int64_t parameters = 0;       // of the whole model
  int64_t body_parameters = 0;  // without an output layer of its own
  int64_t largest_layer = 0;    // parameters, of a block or the embedding
  std::vector<DtypeEstimate> dtypes;
  std::vector<ZeroEstimate> zero;  // stages 0 to 3
};

// `gpus` >= 1: N. `compute`: f32, or bf16/f16 for mixed precision.
MemoryEstimate estimate_memory(const ModelShape& shape, int64_t gpus, DType compute);

}  // namespace mtl
