// The low-rank adapter of a linear (LoRA; plan/model_shape.h): y = x W + s (x A^T) B^T, of A [rank,
// in] and B [out, rank], s = alpha / rank. It is divided over TP as its linear is: column-parallel,
// B is, and each rank has all of A; row-parallel, A is, and what B makes is a part of the linear's
// sum. The gradients of what ranks have in common are parts of sums (ParamRow::grad_sum_over).
#pragma once

#include <string>

#include "runtime/model/context.h"

namespace mtl {

class Adapter {
 public:
  // Empty where the linear has none.
  Adapter(const BlockContext& context, int64_t layer, const std::string& slot);
  explicit operator bool() const { return static_cast<bool>(a_); }

  // y += s (x A^T) B^T.
  void forward(Tensor x, Tensor y) const;
  // dx += s (dy B) A; with `aux` the gradient of what went into the GELU that made x: times the
  // derivative there.
  void backward_input(Tensor dy, Tensor dx, Tensor aux) const;
  // dA (+)= s (dy B)^T x, dB (+)= s dy^T (x A^T). It follows backward_input of the same dy, with no
  // other linear between the two, or is `later`.
  void backward_weight(const Pass& pass, Tensor x, Tensor dy, bool later) const;

 private:
  Tensor narrow_x(Tensor x) const;
  Tensor narrow_dy(Tensor dy) const;

  Device& device_;
  const float scale_;
  Parameter a_, b_;
  // Scratch of all adapters: s x A^T, s dy B, and what is added behind a GELU.
  Tensor x_, dy_, dx_;
};

}  // namespace mtl
