#include "runtime/interchange/hf_llama.h"

#include <fmt/format.h>

namespace mtl {

void read_gelu(ConfigReader& config, const char* key, const char* otherwise, ModelShape& shape) {
  const std::string activation = config.text(key, otherwise);
  const bool exact = activation == "gelu";
  if (!exact && activation != "gelu_new" && activation != "gelu_pytorch_tanh" &&
      activation != "gelu_fast") {
    config.refuse(fmt::format("'{}' is '{}', and only 'gelu' and its tanh form ('gelu_new') are "
                              "there",
                              key, activation),
                  "this model cannot be run by mtl");
  }
  shape.activation = exact ? Activation::gelu_exact : Activation::gelu_tanh;
}

void read_llama_like(ConfigReader& config, ModelShape& shape, const LlamaLike& defaults) {
  shape.norm = defaults.norm;
  shape.activation = defaults.activation;
  shape.layers = config.size("num_hidden_layers");
  shape.hidden = config.size("hidden_size");
  shape.heads = config.size("num_attention_heads");
  // null is said, and follows from the others.
  const auto unsaid = [&](const char* key) { return !config.json().contains(key); };
  const bool own = unsaid("num_key_value_heads") && defaults.kv_heads > 0;
  shape.kv_heads = config.size("num_key_value_heads", own ? defaults.kv_heads : shape.heads);
  // With latents it is the rotated part of a head, if it is there.
  const int64_t head_dim = config.size("head_dim", unsaid("head_dim") ? defaults.head_dim : 0);
  if (!shape.has_latents()) shape.head_dim = head_dim;
  shape.ffn = config.size("intermediate_size");
  shape.max_seq = config.size("max_position_embeddings", 2048);
  shape.norm_eps = config.number_in(
      kEpsRange, shape.norm == NormType::rmsnorm ? "rms_norm_eps" : "layer_norm_eps",
      defaults.norm_eps);
  const std::string activation = config.text("hidden_act", "silu");
  if (shape.activation == Activation::swiglu && activation != "silu" && activation != "swish") {
    config.refuse(fmt::format("'hidden_act' is '{}', and only 'silu' is there", activation),
                  "this model cannot be run by mtl");
  }
  shape.bias = shape.qkv_bias = false;
  shape.tie_embeddings = config.boolean("tie_word_embeddings", false);
  read_hf_rope(config, defaults.rope, shape);
}

void read_biases(ConfigReader& config, ModelShape& shape) {
  const bool attention = config.boolean("attention_bias", false);
  const bool mlp = config.boolean("mlp_bias", false);
  shape.bias = shape.qkv_bias = attention && mlp;
  if (attention == mlp) return;
  config.refuse(
      "'attention_bias' and 'mlp_bias' differ, and here the linear layers all have a bias, or "
      "none, or Q, K and V alone",
      "this model cannot be run by mtl");
}

}  // namespace mtl
