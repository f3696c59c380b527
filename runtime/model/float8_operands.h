// Where the largest magnitudes of what linears round to FP8 are: one number per linear, operand
// and micro-batch under way, for as long as its activations. So what was found forward is known
// backward, whatever else has been on its way since, and recompute finds the same again.
#pragma once

#include "runtime/model/context.h"

namespace mtl {

enum class Float8Operand : int64_t { x, dy };

// f32 [1]; empty where the linear's products are not in FP8.
Buffer float8_amax(const BlockContext& context, int64_t layer, const std::string& slot,
                   Float8Operand operand);

}  // namespace mtl
