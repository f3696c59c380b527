// The rows of a rank's experts on their way into products in FP8: one tensor with one scale,
// whatever experts they belong to. Forward and the gradients of inputs multiply along the rows,
// those of weights along the other way, expert by expert, filled up with zeros to as many rows as
// FP8 takes.
//
// Nothing of it is kept: numbers and memory are those of all layers, until the next tensor of the
// same kind.
#pragma once

#include "runtime/model/linear.h"

namespace mtl {

class Float8Rows {
 public:
  // `on`: the experts multiply FP8. Else operands are what they are made of.
  Float8Rows(const BlockContext& context, bool on);
  explicit operator bool() const { return on_; }

  enum class Kind : int64_t { rows, x, dy };
  // Where an op may leave the largest magnitude of the next along_rows(), 0; empty if off.
  Tensor amax() const;

  // All rows of `values`, of type E4M3 or E5M2. `found`: in amax().
  Operand along_rows(Tensor values, DType type, bool found = false) const;
  // What along_columns() has made of an expert's rows.
  class Columns {
   public:
    Columns(Tensor all, int64_t width, Tensor inverse)
        : all_(all), width_(width), inverse_(inverse) {}
    // [width, rows or more]: of the rows that follow those of the call before.
    Operand next(int64_t rows);

   private:
    Tensor all_;
    int64_t width_, at_ = 0;
    Tensor inverse_;
  };
  // x is E4M3, dy E5M2.
  Columns along_columns(Kind kind, Tensor values, const RowCounts& counts) const;

 private:
  Tensor number(Kind kind, int64_t which) const;

  const BlockContext& context_;
  bool on_;
  Tensor rows_, x_, dy_, numbers_;
};

}  // namespace mtl
