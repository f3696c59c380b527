// Models whose plans forecasts are held against.
#pragma once

#include <cstdint>

#include "common/error.h"
#include "runtime/plan/plan.h"
#include "support/specs.h"

namespace mtl::test {

inline TrainSpec gpt2_like() {
  return spec_with(
      {.layers = 16, .hidden = 768, .heads = 12, .global_batch = 32, .seq_len = 512, .steps = 10});
}

inline TrainSpec llama_like() {
  TrainSpec spec = gpt2_like();
  spec.model.heads = 16;
  spec.model.hidden = 1024;
  spec.model.kv_heads = 4;
  use_llama_blocks(spec);
  spec.model.tie_embeddings = false;
  return spec;
}

// Two of the layers are dense, and wider than an expert.
inline TrainSpec::Model::Moe mixture_of_4() {
  return {.experts = 4,
          .ffn = 2048,
          .dense_layers = {0, 6},
          .topk = 2,
          .score = "sigmoid",
          .shared_ffn = 1024,
          .shared_gate = true,
          .expert_bias = true};
}

inline Plan plan_of(const TrainSpec& spec, int world, int64_t vocab = 50257) {
  ResolvedSpec resolved;
  resolved.spec = spec;
  Diagnostics diagnostics;
  Plan plan = make_plan(resolved, {.vocab = vocab}, world, diagnostics);
  diagnostics.throw_if_errors();
  return plan;
}

}  // namespace mtl::test
