// The blocks of a GPT decoder, each with a hand-written forward and backward. What forward saves
// for backward is declared in the memory plan (runtime/plan/memory.cpp) and looked up by name.
//
// Backward works on the gradient of the residual stream, in place: a block adds what flows through
// it to `dresidual`. With tensor parallelism every rank holds the whole residual stream; blocks sum
// their partial results over the group.
#pragma once

#include "runtime/model/linear.h"
#include "runtime/model/norm.h"

namespace mtl {

// tokens -> residual stream: token embedding (split over the vocabulary) + learned positions,
// dropout.
class EmbeddingBlock {
 public:
  explicit EmbeddingBlock(const BlockContext& context);
  void forward(const Pass& pass) const;
  void backward(const Pass& pass) const;

 private:
  const BlockContext& context_;
  VocabShard shard_;
  Parameter tokens_, positions_;
  Tensor ids_, output_, dresidual_;
};

// x + dropout(proj(attention(qkv(norm(x))))); heads split over TP.
class AttentionBlock {
 public:
  AttentionBlock(const BlockContext& context, int64_t layer);
  void forward(const Pass& pass) const;
  void backward(const Pass& pass) const;

 private:
  AttentionShape attention_shape(const Pass& pass) const;

  const BlockContext& context_;
  int64_t layer_;
  Norm norm_;
  Linear qkv_linear_, proj_linear_;
  Tensor qkv_, lse_, attended_, output_, branch_, dresidual_, dattended_, dqkv_, dnormed_;
};

// x + dropout(down(gelu(up(norm(x))))); the inner dimension split over TP.
class MlpBlock {
 public:
  MlpBlock(const BlockContext& context, int64_t layer);
  void forward(const Pass& pass) const;
  void backward(const Pass& pass) const;

 private:
  const BlockContext& context_;
  int64_t layer_;
  Norm norm_;
  Linear up_, down_;
  Tensor before_gelu_, activated_, output_, branch_, dresidual_, dbefore_gelu_, dnormed_;
};

// Final norm, logits over the rank's part of the vocabulary, vocabulary-parallel cross-entropy
// (never the full logits on one rank).
class HeadBlock {
 public:
  explicit HeadBlock(const BlockContext& context);
  // Fills the losses per token.
  void forward(const Pass& pass) const;
  // d(loss)/d(logits) is scaled by `scale`: 1 / tokens of the global batch.
  void backward(const Pass& pass, float scale) const;
  Tensor losses(const Pass& pass) const { return loss_.slice(0, pass.tokens()); }
  // The logits [valid] after the last token of the pass, without loss (generation; tp = 1).
  Tensor next_logits(const Pass& pass) const;

 private:
  CrossEntropy cross_entropy(const Pass& pass) const;

  const BlockContext& context_;
  VocabShard shard_;
  Norm norm_;
  Parameter head_;
  Tensor logits_, targets_, row_max_, sums_, loss_, dnormed_, dresidual_;
};

}  // namespace mtl
