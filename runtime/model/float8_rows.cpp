#include "runtime/model/float8_rows.h"

#include "runtime/plan/float8.h"

namespace mtl {

Float8Rows::Float8Rows(const BlockContext& context, bool on) : context_(context), on_(on) {
  if (!on) return;
  rows_ = context.arena.tensor(kFloat8ExpertRows);
  x_ = context.arena.tensor(kFloat8ExpertX);
  numbers_ = context.arena.tensor(kFloat8ExpertNumbers);
}

Tensor Float8Rows::amax(Kind kind) const {
  return on_ ? numbers_.slice(kFloat8Numbers * static_cast<int64_t>(kind) + 1, 1) : Tensor();
}
Tensor Float8Rows::inverse(Kind kind) const {
  return numbers_.slice(kFloat8Numbers * static_cast<int64_t>(kind), 1);
}

Tensor Float8Rows::fresh_amax() const {
  if (on_) context_.device.fill(amax(Kind::rows), 0);
  return amax(Kind::rows);
}

void Float8Rows::take_amax(Kind kind, Tensor values) const {
  if (on_ && values.rows() > 0) context_.device.amax(values, amax(kind));
}

Operand Float8Rows::along_rows(Tensor values, DType type, bool found) const {
  if (!on_ || values.rows() == 0) return {values};
  if (!found) take_amax(Kind::rows, values);
  const Operand rounded = {.values = Tensor(rows_.data, type, {values.rows(), values.cols()}),
                           .inverse = inverse(Kind::rows)};
  context_.device.quantize({.x = values,
                            .amax = amax(Kind::rows),
                            .y = rounded.values,
                            .transposed = {},
                            .inverse = rounded.inverse});
  return rounded;
}

Operand Float8Rows::along_tokens(Kind kind, Tensor values, Tensor amax) const {
  const bool is_x = kind == Kind::x;
  const Operand rounded = {
      .values = Tensor((is_x ? x_ : rows_).data, is_x ? DType::f8_e4m3 : DType::f8_e5m2,
                       {values.cols(), float8_filled_up(values.rows())}),
      .inverse = inverse(kind)};
  context_.device.quantize({.x = values,
                            .amax = amax,
                            .y = {},
                            .transposed = rounded.values,
                            .inverse = rounded.inverse});
  return rounded;
}

}  // namespace mtl
