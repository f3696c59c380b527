// The RMS norms of all of a token's query heads together and of all its key heads together
// (model.qk_norm_whole; OLMo 2, arXiv 2501.00656), in place, of the rank's own tokens. TP ranks
// divide the heads: each adds up its own elements, and the sums of both norms travel at once.
#pragma once

#include "runtime/model/context.h"

namespace mtl {

class WholeNorm {
 public:
  WholeNorm(const BlockContext& context, int64_t layer);
  // Whether the model has them.
  explicit operator bool() const { return static_cast<bool>(squares_); }
  // qkv: the rank's part of the projection, of the pass's tokens; dqkv: its gradient.
  void forward(const Pass& pass, Tensor qkv) const;
  void backward(const Pass& pass, Tensor dqkv) const;

 private:
  // One of the two norms, as the rank has it.
  struct Part {
    const Parameter& gamma;
    int64_t first_column, columns;
    float inverse;  // of the number of elements that the sums are of
    Tensor squares, products;
  };
  Part part(const Pass& pass, bool query) const;

  const BlockContext& context_;
  Parameter query_, key_;
  Buffer raw_, squares_, products_;
};

}  // namespace mtl
