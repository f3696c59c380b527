// What a block's result goes through on its way into the residual stream: the sum over the TP
// ranks, the norm behind the block, where the model has one (model.norm.place: OLMo 2, arXiv
// 2501.00656; Gemma 2, 2408.00118), dropout and a scale (model.residual_scale: Granite, MiniCPM,
// arXiv 2404.06395):  x + scale * dropout(norm(sum + bias)).
#pragma once

#include <optional>
#include <string>

#include "runtime/model/float8_operands.h"
#include "runtime/model/norm.h"

namespace mtl {

class BranchEnd {
 public:
  // `block`: "attn" or "mlp"; `linear`: what makes the parts of its sum.
  BranchEnd(const BlockContext& context, int64_t layer, const std::string& block,
            const std::string& linear, DropoutSite site);

  // Where the block's last product puts the rank's part of the sum, of all rows; and whether with
  // its bias: a norm has to see that, which one rank adds then.
  Tensor sum(const Pass& pass) const;
  bool sums_bias() const { return norm_ && context_.tp.rank() == 0; }
  // From there on, but for what `add` says: dropout and the addition. `bias` is that of the sum.
  ResidualAdd forward(const Pass& pass, Tensor bias, Tensor residual, Tensor out) const;
  // The gradient of the sum, of the rank's rows of the stream: `dresidual` itself, or in "branch";
  // where a norm makes it, with the largest magnitude that float8_branch_amax() names.
  // `room`: of all rows, free for the time.
  Tensor backward(const Pass& pass, Tensor dresidual, Tensor room) const;

 private:
  const BlockContext& context_;
  int64_t layer_;
  DropoutSite site_;
  std::optional<Norm> norm_;
  Buffer branch_, input_, amax_;  // input_: of the norm; amax_: of its gradient
};

}  // namespace mtl
