// Column- and row-parallel linears, over weights stored [in, out] (Hugging Face's Conv1D, GPT-2) or
// [out, in] (torch's Linear, Llama). Column-parallel: the rank holds out/tp columns, the output is
// local. Row-parallel: it holds in/tp rows, and the caller sums the outputs over TP and adds the
// bias afterwards (Megatron-LM, arXiv 1909.08053).
#pragma once

#include "runtime/model/context.h"

namespace mtl {

class Linear {
 public:
  Linear(const BlockContext& context, int64_t layer, const std::string& slot);
  // y = x W (+ bias); the bias only of a column-parallel linear.
  void forward(Tensor x, Tensor y, Tensor bias, Epilogue epilogue = Epilogue::none,
               Tensor aux = {}) const;
  // dx (+)= dy W^T, partial sums when the linear is column-parallel.
  void backward_input(Tensor dy, Tensor dx, Epilogue epilogue = Epilogue::none, Tensor aux = {},
                      bool accumulate = false) const;
  // dW (+)= x^T dy and db (+)= the sum of the rows of `bias_dy`: dy itself, or the rank's rows of
  // it where the bias is added to the residual stream.
  void backward_weight(Tensor x, Tensor dy, Tensor bias_dy, bool accumulate) const;
  // The gradients of no rows.
  void backward_weight_of_nothing(bool accumulate) const;
  Tensor bias() const { return bias_.weight; }

 private:
  Device& device_;
  Parameter weight_;
  Parameter bias_;
};

}  // namespace mtl
