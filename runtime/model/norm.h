// A layer norm or RMS norm with what it saves, over rows of the residual stream or of what a block
// adds to it. Where the model has none for a block's input (model.norm.place output), that block's
// is none: what it makes is what it is given.
#pragma once

#include "runtime/model/context.h"

namespace mtl {

class Norm {
 public:
  // `slot` names the parameters; `prefix` the planned buffers: prefix.input, .mean, .rstd, .normed.
  // `amax`: where the largest magnitude of the result goes. `rows`: the prefix of all but .normed,
  // where another norm reads the same rows.
  Norm(const BlockContext& context, int64_t layer, const std::string& slot,
       const std::string& prefix, const Buffer& amax = {}, const std::string& rows = {});
  // Normalises the rows of the pass; returns the result. `before` makes these rows, if somebody
  // has left that to be done.
  Tensor forward(const Pass& pass, const ResidualAdd& before = {}) const;
  // Normalises the planned rows, into `y`.
  void forward_to(const Pass& pass, Tensor y) const;
  // Adds the gradient of the input to `dx` (add) or writes it; `amax` is that of dx afterwards. The
  // gradients of the norm itself are added to with pass.accumulate.
  void backward(const Pass& pass, Tensor dy, Tensor dx, bool add, Tensor amax) const;
  Tensor amax(const Pass& pass) const { return amax_.in(pass.slot); }
  Tensor input(const Pass& pass) const { return stream_rows_of(context_, input_, pass); }
  Tensor normed(const Pass& pass) const {
    return gamma_ ? stream_rows_of(context_, normed_, pass) : input(pass);
  }

 private:
  // Empty for an RMS norm.
  Tensor mean(const Pass& pass) const {
    return mean_ ? stream_values_of(context_, mean_, pass) : Tensor{};
  }

  LayerNorm args(const Pass& pass, Tensor y) const;

  const BlockContext& context_;
  float eps_;
  Parameter gamma_, beta_;
  Buffer input_, mean_, rstd_, normed_, amax_;
};

}  // namespace mtl
