// What the kernels of a mixture of experts share: scores and gates.
#pragma once

#include "runtime/device/cuda/kernels.h"

namespace mtl::cuda {

inline constexpr float kNormalizeFloor = 1e-20f;  // ExpertScores

// Exact to the last bits: of a few numbers per token.
__device__ inline float expert_sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

}  // namespace mtl::cuda
