// A layer norm with what it saves. Replicated over TP: every rank computes the same.
#pragma once

#include "runtime/model/context.h"

namespace mtl {

class Norm {
 public:
  // `slot` names the parameters; `prefix` the planned buffers: prefix.input, .mean, .rstd, .normed.
  Norm(const BlockContext& context, int64_t layer, const std::string& slot,
       const std::string& prefix);
  // Normalises the rows of the pass; returns the result.
  Tensor forward(const Pass& pass) const;
  // Adds the gradient of the input to `dx` (add) or writes it.
  void backward(const Pass& pass, Tensor dy, Tensor dx, bool add) const;
  Tensor input(const Pass& pass) const { return rows_of(input_, pass); }
  Tensor normed(const Pass& pass) const { return rows_of(normed_, pass); }

 private:
  Device& device_;
  float eps_;
  Parameter gamma_, beta_;
  Tensor input_, mean_, rstd_, normed_;
};

}  // namespace mtl
