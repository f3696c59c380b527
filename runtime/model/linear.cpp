#include "runtime/model/linear.h"

namespace mtl {

Linear::Linear(const BlockContext& context, int64_t layer, const std::string& slot)
    : device_(context.device),
      weight_(context.parameters.find(layer, slot + ".weight")),
      bias_(context.parameters.find(layer, slot + ".bias")) {}

void Linear::forward(Tensor x, Tensor y, Tensor bias, Epilogue epilogue, Tensor aux) const {
  device_.matmul({.a = x,
                  .b = weight_.weight,
                  .c = y,
                  .transpose_b = weight_.out_in,
                  .bias = bias,
                  .epilogue = epilogue,
                  .aux = aux});
}

void Linear::backward_input(Tensor dy, Tensor dx, Epilogue epilogue, Tensor aux,
                            bool accumulate) const {
  device_.matmul({.a = dy,
                  .b = weight_.weight,
                  .c = dx,
                  .transpose_b = !weight_.out_in,
                  .accumulate = accumulate,
                  .epilogue = epilogue,
                  .aux = aux});
}

void Linear::backward_weight_of_nothing(bool accumulate) const {
  if (accumulate) return;
  device_.fill(weight_.grad, 0.0f);
  if (bias_) device_.fill(bias_.grad, 0.0f);
}

void Linear::backward_weight(Tensor x, Tensor dy, Tensor bias_dy, bool accumulate) const {
  device_.matmul({.a = weight_.out_in ? dy : x,
                  .b = weight_.out_in ? x : dy,
                  .c = weight_.grad,
                  .transpose_a = true,
                  .accumulate = accumulate});
  if (bias_) device_.bias_grad(bias_dy, bias_.grad, accumulate);
}

}  // namespace mtl
