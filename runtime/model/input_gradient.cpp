#include "runtime/model/input_gradient.h"

namespace mtl {

void backward_to_stream(const BlockContext& context, const Norm& norm, const Pass& pass,
                        const InputGradient& to, const std::function<void()>& weights) {
  Pass of_norm = pass;
  of_norm.accumulate = pass.accumulate || to.shared;
  if (to.parts) norm.backward(of_norm, to.dnormed, to.parts, !to.first, {});
  TensorParallel::Pending leaving;
  if (!to.parts || to.last) {
    leaving = context.tp.start_leave(to.parts ? to.parts : to.dnormed);
  }
  if (weights) weights();
  leaving.finish();
  if (!to.parts) {
    norm.backward(of_norm, context.tp.own_rows(to.dnormed), to.dresidual, true, to.amax);
  } else if (to.last) {
    context.device.add(to.parts, to.dresidual);
  }
}

}  // namespace mtl
