// The settings that tests of small models begin from.
#pragma once

#include "runtime/spec/train_spec.h"

namespace mtl::test {

// What no train.yaml goes without. 0: left to mtl.
struct Sizes {
  int64_t layers = 2, hidden = 32, heads = 4;
  int64_t global_batch = 8, micro_batch = 2, seq_len = 16, steps = 20;
};

inline TrainSpec spec_with(const Sizes& sizes) {
  TrainSpec spec;
  spec.model.layers = sizes.layers;
  spec.model.hidden = sizes.hidden;
  spec.model.heads = sizes.heads;
  spec.train.global_batch = sizes.global_batch;
  spec.train.micro_batch = sizes.micro_batch;
  spec.train.seq_len = sizes.seq_len;
  spec.train.steps = sizes.steps;
  return spec;
}

// LLaMA's blocks in place of GPT-2's; embeddings stay tied and heads have keys of their own.
inline void use_llama_blocks(TrainSpec& spec) {
  spec.model.activation = "swiglu";
  spec.model.norm.type = "rmsnorm";
  spec.model.position.type = "rope";
  spec.model.bias = false;
}

}  // namespace mtl::test
