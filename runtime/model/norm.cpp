#include "runtime/model/norm.h"

#include <cassert>

namespace mtl {

Norm::Norm(const BlockContext& context, int64_t layer, const std::string& slot,
           const std::string& prefix, const Buffer& amax, const std::string& rows)
    : context_(context),
      eps_(static_cast<float>(context.shape.norm_eps)),
      gamma_(context.parameters.find(layer, slot + ".weight")),
      beta_(context.parameters.find(layer, slot + ".bias")),
      input_(context.arena.get((rows.empty() ? prefix : rows) + ".input")),
      mean_(context.arena.find((rows.empty() ? prefix : rows) + ".mean")),
      rstd_(context.arena.find((rows.empty() ? prefix : rows) + ".rstd")),
      normed_(context.arena.find(prefix + ".normed")),
      amax_(gamma_ ? amax : Buffer()) {}

LayerNorm Norm::args(const Pass& pass, Tensor y) const {
  return {.x = input(pass),
          .gamma = gamma_.weight,
          .beta = beta_.weight,
          .y = y,
          .mean = mean(pass),
          .rstd = stream_values_of(context_, rstd_, pass),
          .eps = eps_,
          .amax = amax(pass)};
}

Tensor Norm::forward(const Pass& pass, const ResidualAdd& before) const {
  assert(!before || before.out.data == input(pass).data);
  if (!gamma_) {
    if (before) add_to_stream(context_, pass, before);
  } else if (before) {
    add_to_stream(context_, pass, before, args(pass, normed(pass)));
  } else {
    forward_to(pass, normed(pass));
  }
  return normed(pass);
}

void Norm::forward_to(const Pass& pass, Tensor y) const {
  context_.device.layernorm_forward(args(pass, y));
}

void Norm::backward(const Pass& pass, Tensor dy, Tensor dx, bool add, Tensor amax) const {
  if (!gamma_) {
    assert(add && !amax);
    return context_.device.add(dy, dx);
  }
  context_.device.layernorm_backward({.dy = dy,
                                      .x = input(pass),
                                      .gamma = gamma_.weight,
                                      .mean = mean(pass),
                                      .rstd = stream_values_of(context_, rstd_, pass),
                                      .dx = dx,
                                      .dgamma = gamma_.grad,
                                      .dbeta = beta_.grad,
                                      .add_to_dx = add,
                                      .accumulate = pass.accumulate,
                                      .amax = amax});
}

}  // namespace mtl
