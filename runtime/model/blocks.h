// The blocks of a GPT decoder, each with a hand-written forward and backward. What forward saves
// for backward is declared in the memory plan (runtime/plan/memory.cpp) and looked up by name; what
// recompute drops from that list, backward makes again.
//
// Backward works on the gradient of the residual stream, in place: a block adds what flows through
// it to `dresidual`.
#pragma once

#include <string>

#include "runtime/model/linear.h"
#include "runtime/model/norm.h"

namespace mtl {

// tokens -> residual stream: token embedding (split over the vocabulary) + learned positions if the
// model has them, dropout.
class EmbeddingBlock {
 public:
  // `output`: the planned buffer of the residual stream.
  EmbeddingBlock(const BlockContext& context, const std::string& output);
  void forward(const Pass& pass) const;
  void backward(const Pass& pass) const;

 private:
  void add_positions(const Pass& pass, Tensor stream) const;
  // The positions of this rank's rows, where they do not simply count.
  Tensor own_position_ids(const Pass& pass) const;

  const BlockContext& context_;
  VocabShard shard_;
  Parameter tokens_, positions_;
  // With a tied head on the same rank the gradient is collected by distinct token: row ids, rows.
  Buffer tied_slots_, tied_grad_;
  Buffer ids_, output_, branch_, position_ids_, dresidual_;
};

// x + dropout(proj(attention(qkv(norm(x))))); heads split over TP.
class AttentionBlock {
 public:
  AttentionBlock(const BlockContext& context, int64_t layer);
  void forward(const Pass& pass) const;
  void backward(const Pass& pass) const;

 private:
  AttentionShape attention_shape(const Pass& pass) const;
  // The norms of Q and K, then rotary positions, in place.
  void place_heads(const Pass& pass) const;
  void place_heads_backward(const Pass& pass, Tensor dqkv) const;
  HeadNorm head_norm(const Pass& pass, bool query) const;
  Rope rope(const Pass& pass, Tensor qkv) const;
  void attend(const Pass& pass) const;

  const BlockContext& context_;
  int64_t layer_;
  int64_t heads_, kv_heads_;  // of this rank
  Norm norm_;
  Linear qkv_linear_, proj_linear_;
  Parameter q_norm_, k_norm_;
  Buffer qkv_, raw_, q_rstd_, k_rstd_, lse_, attended_, output_;
  Buffer branch_, gathered_, dresidual_, dattended_, dqkv_, dnormed_;
  Tensor rope_table_;
  Buffer first_key_, position_ids_;  // of documents in a sequence
};

// x + dropout(down(act(up(norm(x))))), act = GELU or SwiGLU; the inner dimension split over TP.
class MlpBlock {
 public:
  // `output`: the planned buffer of the residual stream behind this layer.
  MlpBlock(const BlockContext& context, int64_t layer, const std::string& output);
  void forward(const Pass& pass) const;
  void backward(const Pass& pass) const;
  Tensor output(const Pass& pass) const { return stream_rows_of(context_, output_, pass); }

 private:
  // up and activation, from all rows of the normalised stream.
  void expand(const Pass& pass, Tensor x) const;

  const BlockContext& context_;
  int64_t layer_;
  bool gated_;
  Norm norm_;
  Linear up_, down_;
  Buffer before_act_, activated_, output_;
  Buffer branch_, gathered_, dresidual_, dbefore_act_, dactivated_, dnormed_;
};

// Final norm, logits over the rank's part of the vocabulary, vocabulary-parallel cross-entropy
// (never the full logits on one rank).
class HeadBlock {
 public:
  explicit HeadBlock(const BlockContext& context);
  // Fills the losses per token.
  void forward(const Pass& pass) const;
  // d(loss)/d(logits) is scaled by `scale`. The logits are one buffer for all micro-batches:
  // `logits_are_there` if nothing ran since forward of this one, else they are made again.
  void backward(const Pass& pass, float scale, bool logits_are_there) const;
  Tensor losses(const Pass& pass) const { return loss_.in(pass.slot).slice(0, pass.tokens()); }
  // The logits [valid] after the last token of the pass, without loss (generation; tp = 1).
  Tensor next_logits(const Pass& pass) const;

 private:
  CrossEntropy cross_entropy(const Pass& pass) const;

  const BlockContext& context_;
  VocabShard shard_;
  Norm norm_;
  Parameter head_;
  Buffer logits_, targets_, row_max_, sums_, loss_, gathered_, dnormed_, dresidual_;
};

}  // namespace mtl
