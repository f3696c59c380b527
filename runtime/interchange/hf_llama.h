// What most families have in common in a config.json.
#pragma once

#include "runtime/interchange/hf_config_reader.h"
#include "runtime/interchange/hf_rope.h"
#include "runtime/plan/model_shape.h"

namespace mtl {

inline constexpr ConfigReader::Range kEpsRange{0, 1, true};

// GELU in one of its forms.
void read_gelu(ConfigReader& config, const char* key, const char* otherwise, ModelShape& shape);

// What transformers takes where a config does not say it, or what the family always has.
struct LlamaLike {
  double norm_eps;
  HfRopeDefaults rope;
  NormType norm = NormType::rmsnorm;
  Activation activation = Activation::swiglu;
  int64_t kv_heads = 0;  // 0: as many as heads
  int64_t head_dim = 0;  // 0: the width over the heads
};
// Sizes, norms, positions and the gate, by Llama's names.
void read_llama_like(ConfigReader& config, ModelShape& shape, const LlamaLike& defaults);

// 'attention_bias' and 'mlp_bias': all linear layers have a bias, or none has.
void read_biases(ConfigReader& config, ModelShape& shape);

}  // namespace mtl
