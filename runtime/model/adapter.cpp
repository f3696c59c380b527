#include "runtime/model/adapter.h"

namespace mtl {

namespace {

Tensor first_rows(Tensor scratch, int64_t rows, int64_t cols) {
  return Tensor(scratch.slice(0, rows * cols).data, scratch.dtype, {rows, cols});
}

}  // namespace

Adapter::Adapter(const BlockContext& context, int64_t layer, const std::string& slot)
    : device_(context.device),
      scale_(context.shape.lora ? static_cast<float>(context.shape.lora.scale()) : 1.0f),
      a_(context.parameters.find(layer, slot + kAdapterIn)),
      b_(context.parameters.find(layer, slot + kAdapterOut)) {
  if (!a_) return;
  x_ = context.arena.tensor(kAdapterX);
  dy_ = context.arena.find_tensor(kAdapterDy);
  dx_ = context.arena.find_tensor(kAdapterDx);
}

Tensor Adapter::narrow_x(Tensor x) const {
  const Tensor narrow = first_rows(x_, x.rows(), a_.weight.rows());
  device_.matmul({.a = x, .b = a_.weight, .c = narrow, .transpose_b = true});
  if (scale_ != 1) device_.scale(narrow, scale_);
  return narrow;
}

Tensor Adapter::narrow_dy(Tensor dy) const {
  const Tensor narrow = first_rows(dy_, dy.rows(), b_.weight.cols());
  device_.matmul({.a = dy, .b = b_.weight, .c = narrow});
  if (scale_ != 1) device_.scale(narrow, scale_);
  return narrow;
}

void Adapter::forward(Tensor x, Tensor y) const {
  device_.matmul(
      {.a = narrow_x(x), .b = b_.weight, .c = y, .transpose_b = true, .accumulate = true});
}

void Adapter::backward_input(Tensor dy, Tensor dx, Tensor aux) const {
  const Tensor narrow = narrow_dy(dy);
  if (!aux) {
    device_.matmul({.a = narrow, .b = a_.weight, .c = dx, .accumulate = true});
    return;
  }
  const Tensor added = first_rows(dx_, dx.rows(), dx.cols());
  device_.matmul(
      {.a = narrow, .b = a_.weight, .c = added, .epilogue = Epilogue::gelu_grad, .aux = aux});
  device_.add(added, dx);
}

void Adapter::backward_weight(const Pass& pass, Tensor x, Tensor dy, bool later) const {
  const Tensor dnarrow = later ? narrow_dy(dy) : first_rows(dy_, dy.rows(), b_.weight.cols());
  const auto gradient = [&](Tensor of, Tensor by, Tensor to) {
    device_.matmul({.a = of, .b = by, .c = to, .transpose_a = true, .accumulate = pass.accumulate});
  };
  gradient(dnarrow, x, a_.grad);
  gradient(dy, narrow_x(x), b_.grad);
}

}  // namespace mtl
