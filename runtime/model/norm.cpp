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
      rstd_(context.arena.get((rows.empty() ? prefix : rows) + ".rstd")),
      normed_(context.arena.get(prefix + ".normed")),
      amax_(amax) {}

Tensor Norm::forward(const Pass& pass, const ResidualAdd& before) const {
  const LayerNorm args = {.x = input(pass),
                          .gamma = gamma_.weight,
                          .beta = beta_.weight,
                          .y = normed(pass),
                          .mean = mean(pass),
                          .rstd = stream_values_of(context_, rstd_, pass),
                          .eps = eps_,
                          .amax = amax(pass)};
  if (before) {
    assert(before.out.data == args.x.data);
    add_to_stream(context_, pass, before, args);
  } else {
    context_.device.layernorm_forward(args);
  }
  return args.y;
}

void Norm::backward(const Pass& pass, Tensor dy, Tensor dx, bool add, Tensor amax) const {
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
