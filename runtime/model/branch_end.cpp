#include "runtime/model/branch_end.h"

namespace mtl {

BranchEnd::BranchEnd(const BlockContext& context, int64_t layer, const std::string& block,
                     const std::string& linear, DropoutSite site)
    : context_(context), layer_(layer), site_(site), branch_(context.arena.get("branch")) {
  if (!context.shape.norms_outputs()) return;
  const std::string prefix = layer_buffer(layer, (block + ".behind").c_str());
  norm_.emplace(context, layer, block + ".norm_behind", prefix);
  input_ = context.arena.get(prefix + ".input");
  amax_ = float8_branch_amax(context, layer, linear);
}

Tensor BranchEnd::sum(const Pass& pass) const {
  // With sequence parallelism the norm keeps some of its rows.
  return rows_of(norm_ && !context_.tp.sequence() ? input_ : branch_, pass);
}

ResidualAdd BranchEnd::forward(const Pass& pass, Tensor bias, Tensor residual, Tensor out) const {
  ResidualAdd add = {.x = context_.tp.leave(sum(pass)),
                     .bias = bias,
                     .residual = residual,
                     .out = out,
                     .dropout = dropout_for(context_, pass, layer_, site_),
                     .scale = static_cast<float>(context_.shape.residual_scale)};
  if (!norm_) return add;
  if (context_.tp.sequence()) context_.device.copy(add.x, norm_->input(pass));
  add.x = context_.tp.own_rows(rows_of(branch_, pass));
  add.bias = {};
  norm_->forward_to(pass, add.x);
  return add;
}

Tensor BranchEnd::backward(const Pass& pass, Tensor dresidual, Tensor room) const {
  const Tensor own = context_.tp.own_rows(rows_of(branch_, pass));
  Tensor dout = dresidual;
  if (!context_.shape.adds_as_it_is()) {
    dout = norm_ ? context_.tp.own_rows(room) : own;
    drop_backward(context_, pass, dropout_for(context_, pass, layer_, site_), dresidual, dout,
                  static_cast<float>(context_.shape.residual_scale));
  }
  if (!norm_) return dout;
  norm_->backward(pass, dout, own, false, amax_.in(pass.slot));
  return own;
}

}  // namespace mtl
