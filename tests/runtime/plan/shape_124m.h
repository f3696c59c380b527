// The shape of GPT-2's smallest model, as published.
#pragma once

#include "runtime/plan/model_shape.h"

namespace mtl::test {

inline ModelShape shape_124m() {
  ModelShape shape;
  shape.layers = 12;
  shape.heads = shape.kv_heads = 12;
  shape.head_dim = 64;
  shape.hidden = 768;
  shape.ffn = 3072;
  shape.vocab = 50257;
  shape.vocab_pad_to = 128;
  shape.padded_vocab = 50304;
  shape.max_seq = 1024;
  return shape;
}

}  // namespace mtl::test
