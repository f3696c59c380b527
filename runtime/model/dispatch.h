// Rows of tokens on their way to the experts that they have chosen, and back: on one rank rows are
// put beside each other by expert, and where ranks divide the experts they travel (ExpertParallel).
#pragma once

#include "runtime/model/context.h"

namespace mtl {

// Tokens that go through the experts together: those of a pass, or some of them.
struct Turn {
  Pass pass;  // backward adds to the gradients in all turns but the first, if not in that too
  int64_t first = 0, tokens = 0;
  ExpertRoutes routes;  // of these tokens
  RowCounts counts;
  bool whole = true;  // all tokens of the pass
};

class Dispatch {
 public:
  Dispatch(const BlockContext& context, int64_t layer);

  // Rows that the experts of this rank have memory for.
  int64_t room() const;

  // The tokens' rows, by expert: what the experts are given. Tensors of tokens have those of the
  // turn.
  Tensor inputs(const Turn& turn, Tensor tokens) const;
  // The same once more, for the gradients of weights.
  Tensor inputs_again(const Turn& turn, Tensor tokens) const;
  // Where the experts put rows that go back to the tokens, and that they do: the sum over a token's
  // rows, each times its weight or not.
  Tensor outputs(const Turn& turn) const;
  void take_back(const Turn& turn, Tensor tokens, bool weighted) const;
  // The gradients of the rows' weighted sum, as if weights were 1, and then times the weights: in
  // the first rows of `to`, or where the others lie.
  Tensor gradients(const Turn& turn, Tensor tokens) const;
  Tensor weighted_gradients(const Turn& turn, Tensor tokens, Tensor to) const;
  // The weights of the rows, where the experts are, and where to put their gradients; which
  // take_back_gradients() then makes those of the tokens' weights, dweights f32 [tokens, k].
  RowWeights row_weights(const Turn& turn, Tensor dweights) const;
  void take_back_gradients(const Turn& turn, Tensor dweights) const;

 private:
  Tensor gathered(const Turn& turn, Tensor tokens, Tensor weights, Tensor to) const;
  bool travels() const { return context_.ep.size() > 1; }

  const BlockContext& context_;
  Buffer own_, arrived_, products_, row_numbers_, row_weights_, arrived_weights_;
};

}  // namespace mtl
