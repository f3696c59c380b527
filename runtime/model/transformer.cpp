#include "runtime/model/transformer.h"

#include <ranges>

namespace mtl {

Transformer::Transformer(const BlockContext& context) : embedding_(context), head_(context) {
  for (int64_t layer = 0; layer < context.shape.layers; ++layer) {
    layers_.push_back({AttentionBlock(context, layer), MlpBlock(context, layer)});
  }
}

void Transformer::forward_layers(const Pass& pass) const {
  embedding_.forward(pass);
  for (const Layer& layer : layers_) {
    layer.attention.forward(pass);
    layer.mlp.forward(pass);
  }
}

void Transformer::forward(const Pass& pass) const {
  forward_layers(pass);
  head_.forward(pass);
}

void Transformer::backward(const Pass& pass, float loss_scale) const {
  head_.backward(pass, loss_scale);
  for (const Layer& layer : layers_ | std::views::reverse) {
    layer.mlp.backward(pass);
    layer.attention.backward(pass);
  }
  embedding_.backward(pass);
}

Tensor Transformer::next_logits(const Pass& pass) const {
  forward_layers(pass);
  return head_.next_logits(pass);
}

}  // namespace mtl
