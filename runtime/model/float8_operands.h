// Where the numbers of what linears round to FP8 are: the largest magnitude of each operand, and
// the inverse of the scale of x; per linear and micro-batch under way, for as long as its
// activations. So what was found forward is known backward, whatever else has been on its way
// since, and recompute finds the same again.
//
// They are 0 at the beginning of a pass: the op that makes an operand may leave its largest
// magnitude there (`amax` in device.h), which spares the pass over it.
#pragma once

#include "runtime/model/context.h"

namespace mtl {

enum class Float8Operand : int64_t { x, dy };

// f32 [1]; empty where the linear's products are not in FP8.
Buffer float8_amax(const BlockContext& context, int64_t layer, const std::string& slot,
                   Float8Operand operand);
Buffer float8_x_inverse(const BlockContext& context, int64_t layer, const std::string& slot);
// The same for an operand that a norm makes, forward or backward. Empty also where the linear is
// given another tensor than that: with sequence parallelism it is gathered first, and a gradient
// goes through dropout, or through a norm behind the block.
Buffer float8_stream_amax(const BlockContext& context, int64_t layer, const std::string& slot,
                          Float8Operand operand);
// Of the gradient of what a block's last linear makes: as above, or of what the norm behind the
// block makes of the stream's (branch_end.h).
Buffer float8_branch_amax(const BlockContext& context, int64_t layer, const std::string& slot);

}  // namespace mtl
