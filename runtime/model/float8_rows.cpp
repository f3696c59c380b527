#include "runtime/model/float8_rows.h"

#include "common/float8.h"
#include "runtime/plan/float8.h"

namespace mtl {

Float8Rows::Float8Rows(const BlockContext& context, bool on) : context_(context), on_(on) {
  if (!on) return;
  rows_ = context.arena.tensor(kFloat8ExpertRows);
  x_ = context.arena.tensor(kFloat8ExpertX);
  dy_ = context.arena.tensor(kFloat8ExpertDy);
  numbers_ = context.arena.tensor(kFloat8ExpertNumbers);
}

Tensor Float8Rows::number(Kind kind, int64_t which) const {
  return numbers_.slice(2 * static_cast<int64_t>(kind) + which, 1);
}

Tensor Float8Rows::amax() const {
  if (!on_) return {};
  context_.device.fill(number(Kind::rows, 0), 0);
  return number(Kind::rows, 0);
}

Operand Float8Rows::along_rows(Tensor values, DType type, bool found) const {
  if (!on_ || values.rows() == 0) return {values};
  const Tensor amax = number(Kind::rows, 0), inverse = number(Kind::rows, 1);
  if (!found) context_.device.amax(values, amax);
  const Tensor rounded(rows_.data, type, {values.rows(), values.cols()});
  context_.device.quantize(
      {.x = values, .amax = amax, .y = rounded, .transposed = {}, .inverse = inverse});
  return {.values = rounded, .inverse = inverse};
}

Operand Float8Rows::Columns::next(int64_t rows) {
  const int64_t length = (rows + kFloat8Multiple - 1) / kFloat8Multiple * kFloat8Multiple;
  const Tensor own(all_.slice(at_, width_ * length).data, all_.dtype, {width_, length});
  at_ += width_ * length;
  return {.values = own, .inverse = inverse_};
}

Float8Rows::Columns Float8Rows::along_columns(Kind kind, Tensor values,
                                              const RowCounts& counts) const {
  if (!on_ || values.rows() == 0) return {{}, 0, {}};
  const Tensor amax = number(kind, 0), inverse = number(kind, 1);
  const Columns columns(kind == Kind::x ? x_ : dy_, values.cols(), inverse);
  context_.device.amax(values, amax);
  Columns to = columns;
  int64_t first = 0;
  for (int64_t e = 0; first < values.rows(); ++e) {
    const int64_t rows = counts.of_expert(e);
    if (rows == 0) continue;
    context_.device.quantize({.x = values.row_slice(first, rows),
                              .amax = amax,
                              .y = {},
                              .transposed = to.next(rows).values,
                              .inverse = inverse});
    first += rows;
  }
  return columns;
}

}  // namespace mtl
