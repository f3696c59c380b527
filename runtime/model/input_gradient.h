// The end of a block's backward: from the gradient of the normalised rows that it reads to that of
// the residual stream.
#pragma once

#include <functional>

#include "runtime/model/norm.h"

namespace mtl {

struct InputGradient {
  Tensor dnormed = {};    // of all rows; with tensor parallelism the rank's part of a sum
  Tensor dresidual = {};  // what is added to
  Tensor amax = {};       // receives the largest magnitude of dresidual afterwards
  // Of blocks that read the same rows, where each rank has all of these: the norms' backward is
  // linear, so that the parts of all blocks are added up here, and reduced once behind the last.
  Tensor parts = {};
  bool first = false, last = false;  // of these blocks
  // Whether the norm has had the gradient of another block's backward, which read its result too.
  bool shared = false;
};

// `weights`, if any, makes the gradient of the weight that read the rows, while others travel.
void backward_to_stream(const BlockContext& context, const Norm& norm, const Pass& pass,
                        const InputGradient& to, const std::function<void()>& weights);

}  // namespace mtl
