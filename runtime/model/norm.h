// A layer norm with what it saves. Replicated over TP: every rank computes the same.
#pragma once

#include "runtime/model/context.h"

namespace mtl {

class Norm {
 public:
  // `slot` names the parameters; `prefix` the planned buffers: prefix.input, .mean, .rstd, .normed.
  Norm(const BlockContext& context, int64_t layer, const std::string& slot,
       const std::string& prefix);
  // Normalises the first `rows` rows of the input; returns the result.
  Tensor forward(int64_t rows) const;
  // Adds the gradient of the input to `dx` (add) or writes it.
  void backward(Tensor dy, Tensor dx, bool add, bool accumulate) const;
  Tensor input(int64_t rows) const { return first_rows(input_, rows); }
  Tensor normed(int64_t rows) const { return first_rows(normed_, rows); }

 private:
  Device& device_;
  float eps_;
  Parameter gamma_, beta_;
  Tensor input_, mean_, rstd_, normed_;
};

}  // namespace mtl
