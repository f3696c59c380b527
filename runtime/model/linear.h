// Column- and row-parallel linears, over weights stored [in, out] (Hugging Face's Conv1D, GPT-2) or
// [out, in] (torch's Linear, Llama). Column-parallel: the rank holds out/tp columns, the output is
// local. Row-parallel: it holds in/tp rows, and the caller sums the outputs over TP and adds the
// bias afterwards (Megatron-LM, arXiv 1909.08053).
//
// Where the memory plan has FP8 copies of the weight (plan/float8.h, float8_weights.h), the three
// products are made in FP8, of operands that are rounded on the way: E4M3 for x and W, E5M2 for dy.
// Then backward_weight follows backward_input of the same dy, whose copy it uses, with no other
// linear between the two. For x it uses the copy along the tokens that forward of a training pass
// has left, where the plan keeps one (x itself may be gone then); else x is what forward was given
// and is rounded again, by the largest magnitude that is kept.
//
// With an adapter (adapter.h, whose own are never in FP8) the products are the sum's, and of
// weights that are not trained there is no gradient.
#pragma once

#include "runtime/model/adapter.h"
#include "runtime/model/float8_operands.h"
#include "runtime/model/float8_weights.h"

namespace mtl {

// What a linear multiplies. `amax` is where the op that made it has left its largest magnitude:
// float8_amax() of this linear. Without it the linear takes it. With `inverse`, of the scale,
// values are in FP8 already (float8_rows.h).
struct Operand {
  Tensor values;
  Tensor amax = {};
  Tensor inverse = {};
  Operand rows(int64_t first, int64_t count) const {
    return {values.row_slice(first, count), amax, inverse};
  }
};

// What goes through a GELU on its way out: into `aux` what goes in, and Matmul::gelu_once.
struct Gelu {
  Tensor aux;
  bool once = false;
};

class Linear {
 public:
  Linear(const BlockContext& context, int64_t layer, const std::string& slot);
  // Of an expert, whose FP8 operands come rounded; `place`: as LocalLinear::slot.
  Linear(const BlockContext& context, int64_t layer, const std::string& slot,
         const std::string& place);
  // y (+)= x W (+ bias); the bias of a column-parallel linear, or of one rank.
  void forward(const Pass& pass, Operand x, Tensor y, Tensor bias, Gelu gelu = {},
               bool accumulate = false) const;
  // dx (+)= dy W^T, partial sums when the linear is column-parallel.
  void backward_input(const Pass& pass, Operand dy, Tensor dx, Epilogue epilogue = Epilogue::none,
                      Tensor aux = {}, bool accumulate = false) const;
  // dW (+)= x^T dy and db (+)= the sum of the rows of `bias_dy`: dy itself, or the rank's rows of
  // it where the bias is added to the residual stream.
  void backward_weight(const Pass& pass, Tensor x, Tensor dy, Tensor bias_dy) const;
  // The same when other linears have had their backward since: dy is rounded once more.
  void backward_weight_later(const Pass& pass, Tensor x, Tensor dy, Tensor bias_dy) const;
  // The same of an expert, x [in, n] and dy [out, n] in FP8.
  void backward_weight(const Pass& pass, const Operand& x, const Operand& dy) const;
  // The bias's share of it, if there is a bias.
  void backward_bias(const Pass& pass, Tensor dy) const;
  // The gradients of no rows.
  void backward_weight_of_nothing(const Pass& pass) const;
  Tensor bias() const { return bias_.weight; }
  // Whether its own weight has a gradient.
  bool is_trained() const { return static_cast<bool>(weight_.grad); }
  // An output with an adapter goes through no GELU on its way.
  bool is_adapted() const { return static_cast<bool>(adapter_); }
  bool is_float8() const { return static_cast<bool>(float8_.weight); }

 private:
  // x in FP8 as [rows, cols] and as [cols, rows]; either may be empty.
  void round_input(const Pass& pass, Tensor x, Tensor by_row, Tensor by_column) const;
  void backward_weight(const Pass& pass, Tensor x, Tensor dy, Tensor bias_dy, bool later) const;

  Device& device_;
  Parameter weight_;
  Parameter bias_;
  Adapter adapter_;

  struct Float8 {
    Float8Weight weight;
    // Of operands that are not an expert's.
    Tensor x, dy, dy_by_column;  // scratch of all linears
    Tensor dy_inverse;           // of its scale, f32 [1]
    Buffer x_by_column;          // empty where it is not kept
    Buffer x_amax, dy_amax, x_inverse;
  };
  Float8 float8_;
};

}  // namespace mtl
