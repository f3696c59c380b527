#include "runtime/model/linear.h"

#include <utility>

#include "runtime/plan/float8.h"

namespace mtl {

Linear::Linear(const BlockContext& context, int64_t layer, const std::string& slot,
               const std::string& place)
    : device_(context.device),
      weight_(context.parameters.find(layer, slot + ".weight")),
      bias_(context.parameters.find(layer, slot + ".bias")),
      adapter_(context, layer, slot) {
  float8_.weight = Float8Weight(context, layer, place);
}

Linear::Linear(const BlockContext& context, int64_t layer, const std::string& slot)
    : Linear(context, layer, slot, slot) {
  if (!is_float8()) return;
  float8_.x = context.arena.tensor("fp8.x");
  float8_.dy = context.arena.tensor("fp8.dy");
  float8_.dy_by_column = context.arena.tensor("fp8.dy_by_column");
  float8_.dy_inverse = context.arena.tensor("fp8.dy_inverse");
  float8_.x_by_column = context.arena.find(layer_buffer(layer, slot.c_str()) + kFloat8Kept);
  float8_.x_inverse = float8_x_inverse(context, layer, slot);
  float8_.x_amax = float8_amax(context, layer, slot, Float8Operand::x);
  float8_.dy_amax = float8_amax(context, layer, slot, Float8Operand::dy);
}

namespace {

// The beginning of scratch memory as a matrix.
Tensor as_matrix(Tensor scratch, int64_t rows, int64_t cols) {
  return Tensor(scratch.slice(0, rows * cols).data, scratch.dtype, {rows, cols});
}

}  // namespace

void Linear::round_input(const Pass& pass, Tensor x, Tensor by_row, Tensor by_column) const {
  device_.quantize({.x = x,
                    .amax = float8_.x_amax.in(pass.slot),
                    .y = by_row,
                    .transposed = by_column,
                    .inverse = float8_.x_inverse.in(pass.slot)});
}

void Linear::forward(const Pass& pass, Operand x, Tensor y, Tensor bias, Gelu gelu,
                     bool accumulate) const {
  Matmul product{.a = x.values,
                 .b = weight_.weight,
                 .c = y,
                 .transpose_b = weight_.out_in,
                 .accumulate = accumulate,
                 .bias = bias,
                 .epilogue = gelu.aux ? Epilogue::gelu : Epilogue::none,
                 .aux = gelu.aux,
                 .gelu_once = gelu.once};
  if (is_float8()) {
    product.scale_a = x.inverse;
    if (!x.inverse) {
      if (!x.amax) device_.amax(x.values, float8_.x_amax.in(pass.slot));
      const int64_t rows = x.values.rows(), cols = x.values.cols();
      product.a = as_matrix(float8_.x, rows, cols);
      product.scale_a = float8_.x_inverse.in(pass.slot);
      const bool keep = pass.training && float8_.x_by_column;
      round_input(pass, x.values, product.a,
                  keep ? as_matrix(float8_.x_by_column.in(pass.slot), cols, rows) : Tensor());
    }
    product.b = float8_.weight.forward;
    product.transpose_b = true;
    product.scale_b = float8_.weight.inverse;
  }
  device_.matmul(product);
  if (adapter_) adapter_.forward(x.values, y);
}

void Linear::backward_input(const Pass& pass, Operand dy, Tensor dx, Epilogue epilogue, Tensor aux,
                            bool accumulate) const {
  Matmul product{.a = dy.values,
                 .b = weight_.weight,
                 .c = dx,
                 .transpose_b = !weight_.out_in,
                 .accumulate = accumulate,
                 .epilogue = epilogue,
                 .aux = aux};
  if (is_float8()) {
    product.scale_a = dy.inverse;
    if (!dy.inverse) {
      const int64_t rows = dy.values.rows(), cols = dy.values.cols();
      product.a = as_matrix(float8_.dy, rows, cols);
      product.scale_a = float8_.dy_inverse;
      const Tensor amax = float8_.dy_amax.in(pass.slot);
      if (!dy.amax) device_.amax(dy.values, amax);
      device_.quantize(
          {.x = dy.values,
           .amax = amax,
           .y = product.a,
           .transposed = weight_.grad ? as_matrix(float8_.dy_by_column, cols, rows) : Tensor(),
           .inverse = float8_.dy_inverse});
    }
    product.b = float8_.weight.backward;
    product.transpose_b = true;
    product.scale_b = float8_.weight.inverse;
  }
  device_.matmul(product);
  if (adapter_) adapter_.backward_input(dy.values, dx, aux);
}

void Linear::backward_bias(const Pass& pass, Tensor dy) const {
  if (bias_.grad) device_.bias_grad(dy, bias_.grad, pass.accumulate);
}

void Linear::backward_weight_of_nothing(const Pass& pass) const {
  if (pass.accumulate) return;
  if (weight_.grad) device_.fill(weight_.grad, 0.0f);
  if (bias_.grad) device_.fill(bias_.grad, 0.0f);
}

void Linear::backward_weight(const Pass& pass, const Operand& x, const Operand& dy) const {
  Matmul product{.a = dy.values,
                 .b = x.values,
                 .c = weight_.grad,
                 .transpose_b = true,
                 .accumulate = pass.accumulate,
                 .scale_a = dy.inverse,
                 .scale_b = x.inverse};
  if (!weight_.out_in) {
    std::swap(product.a, product.b);
    std::swap(product.scale_a, product.scale_b);
  }
  device_.matmul(product);
}

void Linear::backward_weight_later(const Pass& pass, Tensor x, Tensor dy, Tensor bias_dy) const {
  if (is_float8() && weight_.grad) {
    device_.quantize({.x = dy,
                      .amax = float8_.dy_amax.in(pass.slot),
                      .y = {},
                      .transposed = as_matrix(float8_.dy_by_column, dy.cols(), dy.rows()),
                      .inverse = float8_.dy_inverse});
  }
  backward_weight(pass, x, dy, bias_dy, true);
}

void Linear::backward_weight(const Pass& pass, Tensor x, Tensor dy, Tensor bias_dy) const {
  backward_weight(pass, x, dy, bias_dy, false);
}

void Linear::backward_weight(const Pass& pass, Tensor x, Tensor dy, Tensor bias_dy,
                             bool later) const {
  if (adapter_) adapter_.backward_weight(pass, x, dy, later);
  if (!weight_.grad) return;
  if (is_float8()) {
    const bool kept = static_cast<bool>(float8_.x_by_column);
    const Tensor rounded =
        as_matrix(kept ? float8_.x_by_column.in(pass.slot) : float8_.x, x.cols(), x.rows());
    if (!kept) round_input(pass, x, {}, rounded);
    backward_weight(pass, Operand{.values = rounded, .inverse = float8_.x_inverse.in(pass.slot)},
                    Operand{.values = as_matrix(float8_.dy_by_column, dy.cols(), dy.rows()),
                            .inverse = float8_.dy_inverse});
    return backward_bias(pass, bias_dy);
  }
  Matmul product{
      .a = dy, .b = x, .c = weight_.grad, .transpose_a = true, .accumulate = pass.accumulate};
  const bool same_rows = bias_dy.data == dy.data && bias_dy.rows() == dy.rows();
  if (bias_ && same_rows) product.sums_of_a = bias_.grad;
  if (!weight_.out_in) {
    std::swap(product.a, product.b);
    std::swap(product.sums_of_a, product.sums_of_b);
  }
  device_.matmul(product);
  if (!same_rows) backward_bias(pass, bias_dy);
}

}  // namespace mtl
