// The block that all tokens of a mixture of experts go through, beside their experts: a SwiGLU
// block like a dense one, split over TP as that is, whose output is added to the experts' sum. With
// a gate (Qwen2-MoE, arXiv 2407.10671) it is multiplied with the sigmoid of a score first, of a
// matrix of one row that every TP rank has.
//
// The gate's gradient needs the output, which nobody keeps: the product of the output and its
// gradient is that of the activations and theirs, behind `down`.
#pragma once

#include <optional>

#include "runtime/model/linear.h"

namespace mtl {

class SharedExpert {
 public:
  SharedExpert(const BlockContext& context, int64_t layer, const PartsAgain& again);

  // From all rows of the normalised stream, whose largest magnitude `amax` has, if somebody has
  // left it: up, the gate's scores, and but with pass.again the activation.
  void expand(const Pass& pass, Tensor x, Tensor amax) const;
  // The rank's part of the output, added to the experts' in `branch`.
  void add_output(const Pass& pass, Tensor branch) const;
  // From dbranch, the gradient of what add_output() wrote: adds its part to dnormed [n, h], the
  // gradient of x, and makes the gradients of `down`, unless they come later. Then x is asked for,
  // for the rest; later both.
  void backward(const Pass& pass, Tensor dbranch, Tensor dnormed) const;
  void backward_weights(const Pass& pass, Tensor x) const;
  void weight_grads(const Pass& pass, Tensor x, Tensor dbranch) const;

 private:
  void activate(const Pass& pass) const;
  Tensor dbefore_act(const Pass& pass) const { return rows_of(dbefore_act_, in_later(pass)); }
  Tensor dscores(const Pass& pass) const { return rows_of(dscores_, in_later(pass)); }

  const BlockContext& context_;
  PartsAgain again_;
  bool leaves_weights_ = false;  // for weight_grads()
  Linear up_, down_;
  std::optional<Linear> gate_;
  Buffer before_act_, activated_, scores_, output_;
  Buffer dbefore_act_, dactivated_, dscores_;
  Buffer dbranch_amax_, activated_amax_, dbefore_act_amax_;  // as in MlpBlock
};

}  // namespace mtl
