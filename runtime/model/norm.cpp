#include "runtime/model/norm.h"

namespace mtl {

Norm::Norm(const BlockContext& context, int64_t layer, const std::string& slot,
           const std::string& prefix)
    : device_(context.device),
      eps_(static_cast<float>(context.shape.norm_eps)),
      gamma_(context.parameters.find(layer, slot + ".weight")),
      beta_(context.parameters.find(layer, slot + ".bias")),
      input_(context.arena.get(prefix + ".input")),
      mean_(context.arena.get(prefix + ".mean")),
      rstd_(context.arena.get(prefix + ".rstd")),
      normed_(context.arena.get(prefix + ".normed")) {}

Tensor Norm::forward(int64_t rows) const {
  const Tensor y = normed(rows);
  device_.layernorm_forward({.x = input(rows),
                             .gamma = gamma_.weight,
                             .beta = beta_.weight,
                             .y = y,
                             .mean = mean_.slice(0, rows),
                             .rstd = rstd_.slice(0, rows),
                             .eps = eps_});
  return y;
}

void Norm::backward(Tensor dy, Tensor dx, bool add, bool accumulate) const {
  const int64_t rows = dy.rows();
  device_.layernorm_backward({.dy = dy,
                              .x = input(rows),
                              .gamma = gamma_.weight,
                              .mean = mean_.slice(0, rows),
                              .rstd = rstd_.slice(0, rows),
                              .dx = dx,
                              .dgamma = gamma_.grad,
                              .dbeta = beta_.grad,
                              .add_to_dx = add,
                              .accumulate = accumulate});
}

}  // namespace mtl
