#include "runtime/interchange/hf_side_by_side.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/interchange/hf_llama.h"
#include "runtime/interchange/hf_windows.h"

namespace mtl {

namespace {

// Layers without a window do not rotate (cohere2).
bool has_windows(const ModelShape& shape) {
  return shape.sliding_window > 0 || !shape.unrotated_layers.empty() ||
         shape.position == PositionType::none;
}

}  // namespace

void read_cohere(ConfigReader& config, const std::string& type, ModelShape& shape) {
  read_llama_like(config, shape, {1e-5, {10000}, NormType::layernorm});
  shape.norm_bias = false;
  shape.parallel_residual = shape.shared_norm = true;
  shape.tie_embeddings = config.boolean("tie_word_embeddings", true);
  shape.logit_scale = config.number_in({0, 1e4, true}, "logit_scale", 0.0625);
  config.require("attention_bias", false, false,
                 "the feed-forward block has no biases, and here all linear layers have one or "
                 "none");
  config.require("use_qk_norm", false, false, "norms of queries and keys are RMS norms here");
  if (type == "cohere") return;
  read_hf_rotating_windows(config, shape);
  if (shape.sliding_window == 0) shape.position = PositionType::none;
  // The published files have these too, and transformers reads none of them.
  for (const char* unread :
       {"_sliding_window_pattern", "layer_switch", "order_of_interleaved_layers",
        "position_embedding_type", "rotary_pct", "use_embedding_sharing", "use_gated_activation",
        "use_parallel_block", "use_parallel_embedding"}) {
    config.find(unread);
  }
}

void read_phi(ConfigReader& config, ModelShape& shape) {
  read_llama_like(config, shape, {1e-5, {10000, 0.5}, NormType::layernorm, Activation::gelu_tanh});
  read_gelu(config, "hidden_act", "gelu_new", shape);
  shape.bias = shape.qkv_bias = shape.head_bias = true;
  shape.parallel_residual = shape.shared_norm = true;
  config.require("qk_layernorm", false, false, "norms of queries and keys are RMS norms here");
}

bool is_side_by_side(const ModelShape& shape) {
  return shape.shared_norm;
}

std::string side_by_side_architecture(const ModelShape& shape) {
  if (shape.activation != Activation::swiglu || shape.head_bias) return "PhiForCausalLM";
  if (shape.has_norm_bias()) return "StableLmForCausalLM";
  return has_windows(shape) ? "Cohere2ForCausalLM" : "CohereForCausalLM";
}

std::vector<std::string> side_by_side_obstacles(const ModelShape& shape) {
  const std::string architecture = side_by_side_architecture(shape);
  const bool phi = architecture == "PhiForCausalLM", stable = architecture == "StableLmForCausalLM";
  const bool cohere2 = architecture == "Cohere2ForCausalLM";
  const char* const family = phi ? "Phi-2" : stable ? "StableLM" : "Command R";
  std::vector<std::string> notes;
  const auto add = [&](bool obstacle, const char* setting, const char* has) {
    if (obstacle) notes.push_back(fmt::format("{}: {}{}", setting, family, has));
  };
  add(shape.norm != NormType::layernorm, "model.norm.type", "'s is layernorm");
  add(phi && shape.gated(), "model.activation", "'s is gelu or gelu_exact");
  add(phi && !shape.head_bias, "model.head_bias", " has one");
  add(phi && (!shape.bias || !shape.qkv_bias), "model.bias", " has all biases");
  add(!phi && shape.bias, "model.bias", " has none");
  add(!phi && !stable && shape.qkv_bias, "model.qkv_bias", " has none");
  add(!cohere2 && shape.position != PositionType::rope, "model.position.type", "'s is rope");
  add(!phi && !stable && shape.rope_fraction != 1, "model.position.fraction",
      " rotates whole heads");
  add(shape.rope_scaling.type == RopeScalingType::longrope, "model.position.scaling longrope",
      " has none, and Phi-3 does");
  add(stable && shape.heads * shape.head_dim != shape.hidden, "model.head_dim",
      "'s is model.hidden / model.heads");
  add(shape.qk_norm, "model.qk_norm", " has no RMS norms of queries and keys");
  add(shape.embedding_scale != 1, "model.embedding_scale", " has none");
  add(shape.attention_scale > 0, "model.attention_scale", "'s is 1 / sqrt(model.head_dim)");
  add(shape.attention_cap > 0, "model.attention_cap", " has none");
  add(shape.logit_cap > 0, "model.logit_cap", " has none");
  add(shape.window_rope_base > 0, "model.position.window_base",
      " rotates all layers with one base");
  if (cohere2) {
    const bool none = shape.position == PositionType::none && shape.sliding_window == 0;
    add(!none && shape.unrotated_layers != shape.full_layers, "model.position.skip",
        " 7B rotates in the layers that have a window");
    add(!none && shape.sliding_window == 0, "model.sliding_window",
        " 7B has one in the layers that rotate");
  } else {
    add(shape.sliding_window > 0, "model.sliding_window", " has none");
    add(!shape.unrotated_layers.empty(), "model.position.skip", " rotates in all layers");
  }
  return notes;
}

void write_cohere(const ModelShape& shape, nlohmann::ordered_json& config) {
  config["model_type"] = "cohere";
  config.erase("rms_norm_eps");
  config["layer_norm_eps"] = shape.norm_eps;
  config["logit_scale"] = shape.logit_scale;
  config["attention_bias"] = false;
  // The family's own, where nothing is said, is a row that a small vocabulary has not.
  config["pad_token_id"] = nullptr;
  if (!has_windows(shape)) {
    config["use_qk_norm"] = false;
    return;
  }
  config["model_type"] = "cohere2";
  // Of layers that there are not, where there is no window.
  config["sliding_window"] = shape.sliding_window > 0 ? shape.sliding_window : shape.max_seq;
  config["layer_types"] = hf_layer_types(shape);
}

void write_phi(const ModelShape& shape, nlohmann::ordered_json& config) {
  config["model_type"] = "phi";
  config.erase("rms_norm_eps");
  config["layer_norm_eps"] = shape.norm_eps;
  config["hidden_act"] = shape.activation == Activation::gelu_exact ? "gelu" : "gelu_new";
  config["partial_rotary_factor"] = shape.rope_fraction;
  config["qk_layernorm"] = false;
  config["resid_pdrop"] = shape.dropout_hidden;
  config["embd_pdrop"] = shape.dropout_hidden;
}

}  // namespace mtl
