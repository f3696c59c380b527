// A GPT decoder: embedding, layers of attention and MLP, head.
#pragma once

#include <vector>

#include "runtime/model/blocks.h"

namespace mtl {

class Transformer {
 public:
  explicit Transformer(const BlockContext& context);
  // Reads the arena's "tokens" (and "targets"), leaves a loss per token.
  void forward(const Pass& pass) const;
  // After forward of the same pass: adds to or writes every gradient.
  void backward(const Pass& pass, float loss_scale) const;
  Tensor losses(const Pass& pass) const { return head_.losses(pass); }
  // The logits of the token that follows the last one of a single sequence (generation). A pass
  // with `past` goes on where earlier ones ended: their keys and values are still in the buffers.
  Tensor next_logits(const Pass& pass) const;

 private:
  void forward_layers(const Pass& pass) const;

  EmbeddingBlock embedding_;
  struct Layer {
    AttentionBlock attention;
    MlpBlock mlp;
  };
  std::vector<Layer> layers_;
  HeadBlock head_;
};

}  // namespace mtl
