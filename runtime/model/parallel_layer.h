// A layer whose blocks stand side by side (GPT-NeoX, arXiv 2204.06745; GPT-J):
//   x + dropout(attention(norm(x)) + mlp(norm'(x)))
// or of one norm for both (model.norm.shared: Command R, Phi-2).
// Both read x, and their results are one sum: with tensor parallelism it is reduced once, and
// backward the gradients of x are too, where each rank has all rows (with sequence parallelism they
// are of other rows than the norms', and travel apart).
#pragma once

#include "runtime/model/blocks.h"

namespace mtl {

// As those of the blocks; `of_mlp`: the pass, made again without output in the last layer of a
// group.
ResidualAdd parallel_forward(const BlockContext& context, const AttentionBlock& attention,
                             const MlpBlock& mlp, const Pass& pass, const Pass& of_mlp,
                             const ResidualAdd& before);
void parallel_backward(const BlockContext& context, const AttentionBlock& attention,
                       const MlpBlock& mlp, const Pass& pass);

}  // namespace mtl
