#include "runtime/model/parallel_layer.h"

namespace mtl {

ResidualAdd parallel_forward(const BlockContext& context, const AttentionBlock& attention,
                             const MlpBlock& mlp, const Pass& pass, const Pass& of_mlp,
                             const ResidualAdd& before) {
  // Gathered rows lie where the sum will, until the block has read them.
  const Tensor branch = mlp.branch(pass);
  Tensor x = context.tp.enter(attention.norm().forward(pass, before), branch);
  attention.attend_to(pass, x);
  if (!context.shape.shared_norm) x = context.tp.enter(mlp.norm().forward(pass), branch);
  mlp.expand(of_mlp, x);
  if (of_mlp.again) return {};
  // One rank adds what is no part of a sum.
  attention.project(pass, branch, context.tp.rank() == 0);
  mlp.contract(pass, branch, true);
  return mlp.output_of(pass);
}

void parallel_backward(const BlockContext& context, const AttentionBlock& attention,
                       const MlpBlock& mlp, const Pass& pass) {
  const Tensor branch = mlp.branch(pass), dresidual = mlp.dresidual(pass);
  const Tensor dstream = mlp.output_backward(pass);
  const Tensor dbranch = context.tp.enter(dstream, branch);
  // While dstream is whole: what follows adds to dresidual, or takes the branch's place.
  attention.project_backward(pass, dbranch, dstream);
  const Tensor parts = context.tp.size() > 1 && !context.tp.sequence() ? branch : Tensor();
  mlp.backward(pass, dbranch, dstream, {.dresidual = dresidual, .parts = parts, .first = true});
  attention.backward(
      pass,
      {.dresidual = dresidual, .parts = parts, .last = true, .shared = context.shape.shared_norm});
}

}  // namespace mtl
