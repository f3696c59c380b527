// The rows of a rank's experts on their way into products in FP8: one tensor with one scale,
// whatever experts they belong to. Forward and the gradients of inputs multiply along the rows,
// those of weights along the tokens, expert by expert, filled up with zeros to as many as FP8
// takes.
//
// Nothing of it is kept: memory is that of all layers, and what it holds is used by the products
// that follow at once.
#pragma once

#include "runtime/model/linear.h"

namespace mtl {

class Float8Rows {
 public:
  // `on`: the experts multiply FP8. Else operands are what they are made of.
  Float8Rows(const BlockContext& context, bool on);
  explicit operator bool() const { return on_; }

  enum class Kind : int64_t { rows, x, dy };
  // Where the largest magnitude of all rows is, f32 [1]: of those that go along the rows, and of x
  // and dy along the tokens. Empty if off.
  Tensor amax(Kind kind) const;
  // The same at 0, for the op that makes what along_rows() is given next.
  Tensor fresh_amax() const;
  void take_amax(Kind kind, Tensor values) const;

  // All rows of `values`, as E4M3 or E5M2. `found`: their op has left amax(Kind::rows).
  Operand along_rows(Tensor values, DType type, bool found = false) const;
  // An expert's rows, [width, rows or more]: x as E4M3, dy as E5M2. `amax`: of all experts' rows.
  Operand along_tokens(Kind kind, Tensor values, Tensor amax) const;

 private:
  Tensor inverse(Kind kind) const;

  const BlockContext& context_;
  bool on_;
  Tensor rows_, x_, numbers_;
};

}  // namespace mtl
