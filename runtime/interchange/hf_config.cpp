// Reading config.json (hf_config.h).
#include "runtime/interchange/hf_config.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/interchange/hf_architectures.h"
#include "runtime/interchange/hf_config_reader.h"
#include "runtime/interchange/hf_experts.h"
#include "runtime/interchange/hf_gpt_oss.h"
#include "runtime/interchange/hf_granite.h"
#include "runtime/interchange/hf_latent.h"
#include "runtime/interchange/hf_llama.h"
#include "runtime/interchange/hf_mxfp4.h"
#include "runtime/interchange/hf_rope.h"
#include "runtime/interchange/hf_side_by_side.h"
#include "runtime/interchange/hf_windows.h"

namespace mtl {

namespace {

void read_gpt2(ConfigReader& config, ModelShape& shape) {
  shape.layers = config.size("n_layer");
  shape.hidden = config.size("n_embd");
  shape.heads = shape.kv_heads = config.size("n_head");
  shape.max_seq = config.size("n_positions", 1024);
  shape.ffn = config.size("n_inner", 4 * shape.hidden);
  shape.norm_eps = config.number_in(kEpsRange, "layer_norm_epsilon", 1e-5);
  read_gelu(config, "activation_function", "gelu_new", shape);
  config.require("scale_attn_weights", true, true, "scores are always scaled here");
  config.require("scale_attn_by_inverse_layer_idx", false, false, "layers are alike here");
  config.require("add_cross_attention", false, false, "there is no encoder here");
  shape.tie_embeddings = config.boolean("tie_word_embeddings", true);
}

void read_gpt_neox(ConfigReader& config, ModelShape& shape) {
  shape.layers = config.size("num_hidden_layers");
  shape.hidden = config.size("hidden_size");
  shape.heads = shape.kv_heads = config.size("num_attention_heads");
  shape.ffn = config.size("intermediate_size");
  shape.max_seq = config.size("max_position_embeddings", 2048);
  shape.norm_eps = config.number_in(kEpsRange, "layer_norm_eps", 1e-5);
  read_gelu(config, "hidden_act", "gelu", shape);
  shape.parallel_residual = config.boolean("use_parallel_residual", true);
  config.require("attention_bias", true, true, "all linear layers have a bias here, or none");
  shape.tie_embeddings = config.boolean("tie_word_embeddings", false);
  // transformers 5 has other names for these two, which win there, and these win in 4.57.
  for (const auto& [older, newer] : {std::pair("rotary_emb_base", "rope_theta"),
                                     std::pair("rotary_pct", "partial_rotary_factor")}) {
    if (config.find(older) == nullptr || config.find(newer) == nullptr) continue;
    if (config.number(older, 0) == config.number(newer, 0)) continue;
    config.refuse(fmt::format("'{}' and '{}' are one number and differ", older, newer),
                  "keep the one that the model was trained with");
  }
  const double base = config.number_in({0, 1e12, true}, "rotary_emb_base", 10000);
  const double fraction = config.number_in({0, 1, true}, "rotary_pct", 0.25);
  read_hf_rope(config, {base, fraction}, shape);
}

// Of Qwen2 and Qwen3, where they are no mixtures.
constexpr HfWindows kQwenWindows = {
    .window = 4096, .switched = true, .full_below = 28, .by_layer = true};

void read_starcoder2(ConfigReader& config, ModelShape& shape) {
  shape.layers = config.size("num_hidden_layers");
  shape.hidden = config.size("hidden_size");
  shape.heads = config.size("num_attention_heads");
  shape.kv_heads = config.size("num_key_value_heads", 2);
  shape.ffn = config.size("intermediate_size");
  shape.max_seq = config.size("max_position_embeddings", 4096);
  shape.norm_eps = config.number_in(kEpsRange, "norm_epsilon", 1e-5);
  read_gelu(config, "hidden_act", "gelu_pytorch_tanh", shape);
  shape.bias = shape.qkv_bias = config.boolean("use_bias", true);
  shape.tie_embeddings = config.boolean("tie_word_embeddings", true);
  read_hf_rope(config, {10000}, shape);
  read_hf_windows(config, {}, shape);
  // The published files have these too, and transformers reads none of them.
  for (const char* unread :
       {"attention_softmax_in_fp32", "layer_norm_epsilon", "mlp_type", "norm_type",
        "scale_attention_softmax_in_fp32", "scale_attn_weights"}) {
    config.find(unread);
  }
}

// What all Gemmas have in common.
void read_gemma_blocks(ConfigReader& config, ModelShape& shape) {
  if (shape.head_dim == 0) shape.head_dim = 256;
  shape.tie_embeddings = config.boolean("tie_word_embeddings", true);
  shape.embedding_scale = std::sqrt(static_cast<double>(shape.hidden));
  config.require("attention_bias", false, false, "Gemma has no biases");
}

void refuse_gate(ConfigReader& config, const char* key, const std::string& gate) {
  config.refuse(fmt::format("'{}' is '{}', and as a gate only the tanh form of GELU is there "
                            "('gelu_pytorch_tanh')",
                            key, gate),
                "this model cannot be run by mtl");
}

bool is_tanh_gelu(const std::string& activation) {
  return activation == "gelu_pytorch_tanh" || activation == "gelu_new";
}

void read_gemma(ConfigReader& config, ModelShape& shape) {
  read_llama_like(config, shape, {1e-6, {10000}, NormType::rmsnorm, Activation::geglu});
  read_gemma_blocks(config, shape);
  // The first files said "gelu" and meant the tanh form; the other key came to say so.
  const bool said = config.find("hidden_activation") != nullptr;
  const std::string gate =
      said ? config.text("hidden_activation", "") : config.text("hidden_act", "gelu_pytorch_tanh");
  if (is_tanh_gelu(gate) || (gate == "gelu" && !said)) return;
  refuse_gate(config, said ? "hidden_activation" : "hidden_act", gate);
}

// What Gemma 2 and 3 have in common.
void read_later_gemma(ConfigReader& config, ModelShape& shape, const HfWindows& windows,
                      const HfRopeDefaults& rope) {
  shape.layers = config.size("num_hidden_layers", 0);
  read_hf_windows(config, windows, shape);
  read_llama_like(config, shape, {1e-6, rope, NormType::rmsnorm, Activation::geglu});
  read_gemma_blocks(config, shape);
  shape.norm_place = NormPlace::both;
  const double scalar = config.number_in({0, 1e9, true}, "query_pre_attn_scalar", 256);
  if (scalar != static_cast<double>(shape.head_dim)) shape.attention_scale = 1 / std::sqrt(scalar);
  const std::string gate = config.text("hidden_activation", "gelu_pytorch_tanh");
  if (!is_tanh_gelu(gate)) refuse_gate(config, "hidden_activation", gate);
  config.require("use_bidirectional_attention", false, false,
                 "queries do not see what follows them here");
}

void read_gemma2(ConfigReader& config, ModelShape& shape) {
  read_later_gemma(config, shape, {.window = 4096, .full_every = 2, .by_layer = true}, {10000});
  const auto cap = [&](const char* key, double otherwise) {
    // null is said, and means none.
    if (config.json().contains(key) && config.find(key) == nullptr) return 0.0;
    return config.number_in({0, 1e6, true}, key, otherwise);
  };
  shape.attention_cap = cap("attn_logit_softcapping", 50);
  shape.logit_cap = cap("final_logit_softcapping", 30);
}

// Without pictures.
void read_gemma3(ConfigReader& config, ModelShape& shape) {
  read_later_gemma(
      config, shape,
      {.window = 4096, .pattern = "sliding_window_pattern", .full_every = 6, .by_layer = true},
      {.theta = 1e6, .window_theta = 10000});
  shape.qk_norm = true;
  if (config.json().contains("sliding_window") && config.find("sliding_window") == nullptr) {
    config.refuse("'sliding_window' is null, and layers with a window rotate otherwise here");
  }
  config.find("_sliding_window_pattern");  // beside the 'layer_types' that were made of it
  for (const char* cap : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (config.find(cap) != nullptr) {
      config.refuse(fmt::format("'{}' is given, which Gemma 2 has", cap),
                    "this model cannot be run by mtl");
    }
  }
}

void read_olmo2(ConfigReader& config, ModelShape& shape) {
  read_llama_like(config, shape, {1e-5, {10000}});
  shape.norm_place = NormPlace::output;
  shape.qk_norm = shape.qk_norm_whole = true;
  config.require("attention_bias", false, false, "norms of queries and keys come without biases");
}

// OLMo 2 with windows, in which rotary positions are not scaled.
void read_olmo3(ConfigReader& config, ModelShape& shape) {
  read_olmo2(config, shape);
  read_hf_windows(config, {.window = 4096, .full_every = 4, .by_layer = true}, shape);
  const bool scaled = shape.rope_scaling.type != RopeScalingType::none;
  if (shape.sliding_window > 0 && scaled) shape.window_rope_base = shape.rope_base;
}

void read_exaone4(ConfigReader& config, ModelShape& shape) {
  read_llama_like(config, shape, {1e-5, {10000}});
  shape.norm_place = NormPlace::output;
  shape.qk_norm = true;
  const bool none = read_hf_rotating_windows(config, shape);
  if (!none && shape.sliding_window == 0) shape.position = PositionType::none;
}

// Llama with layers that do not rotate.
void read_smollm3(ConfigReader& config, ModelShape& shape) {
  read_llama_like(config, shape, {1e-6, {2e6}});
  read_biases(config, shape);
  // As all families have it that do not say otherwise.
  shape.tie_embeddings = config.boolean("tie_word_embeddings", true);
  read_hf_unrotated(config, 4, shape);
  read_hf_windows(config, {.switched = true, .by_layer = true, .of_unrotated = true}, shape);
}

// GLM-4.5: unlike GLM-4 it turns halves of what is rotated, and has no norms behind blocks.
void read_glm4_moe(ConfigReader& config, ModelShape& shape) {
  read_llama_like(config, shape, {.norm_eps = 1e-5, .rope = {10000, 0.5}, .kv_heads = 8});
  shape.qkv_bias = config.boolean("attention_bias", false);
  shape.qk_norm = config.boolean("use_qk_norm", false);
  read_deepseek_experts(config, shape,
                        {.experts = 128,
                         .chosen = 8,
                         .ffn = 1408,
                         .shared = 1,
                         .dense = 1,
                         .scores = {.sigmoid = true}});
}

// Llama with a switch for each part's biases.
void read_seed_oss(ConfigReader& config, ModelShape& shape) {
  read_llama_like(config, shape,
                  {.norm_eps = 1e-6, .rope = {10000}, .kv_heads = 8, .head_dim = 128});
  shape.qkv_bias = config.boolean("attention_bias", true);
  shape.bias = config.boolean("attention_out_bias", false);
  if (config.boolean("mlp_bias", false) == shape.bias) return;
  config.refuse(
      "'attention_out_bias' and 'mlp_bias' differ, and here both of these parts have biases, or "
      "neither has, whatever Q, K and V have",
      "this model cannot be run by mtl");
}

void read_ernie(ConfigReader& config, ModelShape& shape) {
  read_llama_like(config, shape,
                  {.norm_eps = 1e-5, .rope = {500'000}, .kv_heads = 2, .head_dim = 128});
  shape.bias = shape.qkv_bias = config.boolean("use_bias", false);
  shape.tie_embeddings = config.boolean("tie_word_embeddings", true);
  // Baidu's own code divides positions by it, and transformers does not read it.
  if (config.number("compression_ratio", 1) != 1) {
    config.refuse("'compression_ratio' is not 1: positions are not divided here",
                  "this model cannot be run by mtl");
  }
}

void read_family(ConfigReader& config, const std::string& type, ModelShape& shape) {
  if (type == "gpt2") return read_gpt2(config, shape);
  if (type == "gpt_neox") return read_gpt_neox(config, shape);
  if (type == "gemma") return read_gemma(config, shape);
  if (type == "starcoder2") return read_starcoder2(config, shape);
  if (type == "gemma2") return read_gemma2(config, shape);
  if (type == "gemma3_text") return read_gemma3(config, shape);
  if (type == "olmo2") return read_olmo2(config, shape);
  if (type == "olmo3") return read_olmo3(config, shape);
  if (type == "exaone4") return read_exaone4(config, shape);
  if (type == "smollm3") return read_smollm3(config, shape);
  if (type == "glm4_moe") return read_glm4_moe(config, shape);
  if (type == "seed_oss") return read_seed_oss(config, shape);
  if (type == "ernie4_5") return read_ernie(config, shape);
  if (type == "gpt_oss") return read_gpt_oss(config, shape);
  if (type.starts_with("granite")) return read_granite(config, type, shape);
  if (type.starts_with("cohere")) return read_cohere(config, type, shape);
  if (type == "phi") return read_phi(config, shape);
  if (type == "llama") {
    read_llama_like(config, shape, {1e-6, {10000}});
    read_biases(config, shape);
  } else if (type == "stablelm") {
    read_llama_like(config, shape, {1e-5, {10000, 0.25}, NormType::layernorm});
    shape.qkv_bias = config.boolean("use_qkv_bias", false);
    shape.parallel_residual = shape.shared_norm = config.boolean("use_parallel_residual", false);
    config.require("qk_layernorm", false, false, "norms of queries and keys are RMS norms here");
    if (shape.head_dim > 0 && shape.head_dim * shape.heads != shape.hidden) {
      config.refuse("'head_dim' is not 'hidden_size' / 'num_attention_heads'",
                    "compare config.json with the original model's");
    }
  } else if (type == "glm" || type == "glm4") {
    read_llama_like(config, shape, {1.5625e-7, {10000, 0.5}});
    if (shape.head_dim == 0) shape.head_dim = 128;
    if (type == "glm4") shape.norm_place = NormPlace::both;
    shape.qkv_bias = config.boolean("attention_bias", true);
  } else if (type == "olmoe") {
    read_llama_like(config, shape, {1e-5, {10000}});
    shape.qk_norm = shape.qk_norm_whole = true;
    config.require("attention_bias", false, false, "norms of queries and keys come without biases");
    read_olmoe_experts(config, shape);
  } else if (type == "mistral") {
    read_llama_like(config, shape, {1e-6, {10000}});
    // Missing is not the same as null here.
    const bool given = config.json().contains("sliding_window");
    read_hf_windows(config, {.window = given ? 0 : 4096}, shape);
  } else if (type == "phi3") {
    read_llama_like(config, shape, {1e-5, {10000, 1.0}});
    config.require("attention_bias", false, false, "Phi-3 has no biases");
    config.find("original_max_position_embeddings");  // of 'longrope', where it is read
    read_hf_windows(config, {}, shape);
  } else if (type == "qwen2") {
    read_llama_like(config, shape, {1e-6, {10000}});
    shape.qkv_bias = true;
    read_hf_windows(config, kQwenWindows, shape);
  } else if (type == "qwen3") {
    read_llama_like(config, shape, {1e-6, {10000}});
    if (shape.head_dim == 0) shape.head_dim = 128;
    shape.qk_norm = true;
    config.require("attention_bias", false, false, "norms of queries and keys come without biases");
    read_hf_windows(config, kQwenWindows, shape);
  } else if (type == "qwen3_moe") {
    read_llama_like(config, shape, {1e-6, {10000}});
    shape.qk_norm = true;
    config.require("attention_bias", false, false, "norms of queries and keys come without biases");
    read_qwen_experts(config, shape, 128, 8, 768);
    // 4.57 has no such number any more: a window is that of all layers.
    read_hf_windows(config, {.window = 4096, .switched = true, .full_below = 0}, shape);
  } else if (type.starts_with("deepseek_v") || type == "kimi_k2") {
    read_latent_heads(config, shape);
    read_llama_like(config, shape, {1e-6, {10000}});
    read_deepseek(config, type, shape);
  } else if (type == "dots1") {
    read_llama_like(config, shape, {1e-6, {10000}});
    shape.qk_norm = true;
    config.require("attention_bias", false, false, "norms of queries and keys come without biases");
    read_deepseek_experts(config, shape,
                          {.ffn = 1408, .scores = {.sigmoid = true, .normalize = false}});
    // The published files have these, and transformers reads neither.
    for (const char* unread : {"scoring_func", "use_sliding_window"}) config.find(unread);
    const bool given = config.json().contains("sliding_window");
    read_hf_windows(config, {.window = given ? 0 : 4096, .full_below = 62, .by_layer = true},
                    shape);
  } else if (type == "qwen2_moe") {
    read_llama_like(config, shape, {1e-6, {10000}});
    shape.qkv_bias = config.boolean("qkv_bias", true);
    read_qwen_experts(config, shape, 60, 4, 1408);
    shape.shared_ffn = config.size("shared_expert_intermediate_size", 5632);
    shape.shared_gate = true;
    if (shape.shared_ffn < 1) {
      config.refuse("'shared_expert_intermediate_size' is 0",
                    "compare config.json with the original model's");
    }
    read_hf_windows(config, {.window = 4096, .switched = true, .full_below = 28}, shape);
  } else {
    read_llama_like(config, shape, {1e-5, {1e6}});
    read_mixtral_experts(config, shape, 8, 2);
    read_hf_windows(config, {}, shape);
  }
}

// The text part of a Gemma 3 that sees pictures. Of its fields the published files leave out what
// transformers takes anyway.
HfModel text_of_gemma3(const nlohmann::json& json, const std::string& file,
                       Diagnostics& diagnostics) {
  ConfigReader whole(json, file, diagnostics);
  for (const char* of_pictures : {"boi_token_index", "eoi_token_index", "image_token_index",
                                  "mm_tokens_per_image", "vision_config"}) {
    whole.find(of_pictures);
  }
  nlohmann::json text = {{"vocab_size", 262'208},     {"hidden_size", 2304},
                         {"intermediate_size", 9216}, {"num_hidden_layers", 26},
                         {"num_attention_heads", 8},  {"num_key_value_heads", 4},
                         {"head_dim", 256},           {"max_position_embeddings", 131'072}};
  if (whole.find("text_config") == nullptr) whole.refuse("'text_config' is missing");
  text.update(whole.section("text_config").json());
  text["model_type"] = "gemma3_text";
  text.erase("architectures");
  whole.warn("it describes a model that sees pictures, and its text part alone is read",
             "nothing, if texts are all that it is for");
  whole.finish();
  HfModel model = model_from_hf_config(text, file, diagnostics);
  model.with_pictures = true;
  return model;
}

}  // namespace

HfModel model_from_hf_config(const nlohmann::json& json, const std::string& file,
                             Diagnostics& diagnostics) {
  HfModel model;
  const auto refuse_family = [&](const std::string& what) {
    diagnostics.add({.code = "import.family",
                     .what = file + ": " + what,
                     .help = fmt::format("mtl reads {}, for causal LM", hf_types())});
  };
  if (!json.is_object()) {
    refuse_family("it is not a JSON object");
    return model;
  }
  if (json.contains("model_type") && json["model_type"] == "gemma3") {
    return text_of_gemma3(json, file, diagnostics);
  }
  ConfigReader config(json, file, diagnostics);
  const std::string type = config.text("model_type", "");
  const auto known = hf_architecture(type);
  if (!known) {
    const auto why = other_than_here(type);
    refuse_family(type.empty() ? "'model_type' is missing"
                  : why        ? fmt::format("models of type '{}' are not here: {}", type, *why)
                               : fmt::format("models of type '{}' are not known here", type));
    return model;
  }
  model.architecture = *known;
  // A base model without its head is the same weights; another head is not.
  if (const nlohmann::json* const classes = config.find("architectures")) {
    const std::string base = model.architecture.substr(0, model.architecture.find("LM"))
                                 .substr(0, model.architecture.find("For"));
    // ERNIE 4.5 came with code of its own, which spells it otherwise.
    const bool fits = classes->is_array() && classes->size() == 1 && (*classes)[0].is_string() &&
                      ((*classes)[0] == model.architecture || (*classes)[0] == base + "Model" ||
                       (type == "ernie4_5" && (*classes)[0] == "Ernie4_5_ForCausalLM"));
    if (!fits) refuse_family(fmt::format("'architectures' is {}", classes->dump().substr(0, 80)));
  }
  ModelShape& shape = model.shape;
  shape.vocab = config.size("vocab_size");
  shape.init_std = config.number("initializer_range", 0.02);
  read_family(config, type, shape);
  if (type == "gpt_oss" && read_mxfp4(config)) {
    model.mxfp4 = true;
    if (shape.hidden % kMxGroup != 0 || shape.ffn % kMxGroup != 0) {
      config.refuse(
          fmt::format("the widths {} and {} have no groups of 32, which MXFP4 has a "
                      "scale for",
                      shape.hidden, shape.ffn));
    }
  }
  if (shape.has_latents() || type == "glm4_moe") {
    model.layers_ahead = config.size("num_nextn_predict_layers", 0);
  }
  const auto positive = [&](const char* what, int64_t value) {
    if (value >= 1) return true;
    config.refuse(fmt::format("{} is {}", what, value));
    return false;
  };
  // Products of two sizes stay far inside 64 bits.
  if (positive("the number of heads", shape.heads) && positive("the width", shape.hidden) &&
      positive("the number of key heads", shape.kv_heads) &&
      positive("the number of layers", shape.layers) && positive("'vocab_size'", shape.vocab) &&
      positive("the inner width", shape.ffn) &&
      positive("the number of positions", shape.max_seq)) {
    if (shape.head_dim == 0) shape.head_dim = shape.hidden / shape.heads;
    if (shape.heads % shape.kv_heads != 0) {
      config.refuse(
          fmt::format("{} heads cannot share {} key heads evenly", shape.heads, shape.kv_heads));
    }
    const int64_t rotated = shape.rotary_dim();
    if (shape.position == PositionType::rope && shape.head_dim > 0 &&
        (rotated < 2 || rotated % 2 != 0)) {
      config.refuse(fmt::format("of the {} elements of a head {} are rotated, which are no pairs",
                                shape.head_dim, rotated),
                    "compare config.json with the original model's");
    }
    if (shape.layers > kMostLayers) config.refuse("more than 100000 layers");
    if (shape.layers * shape.heads > 1'000'000) {
      config.refuse("more than a million heads in all layers");
    }
    if (shape.experts > 65'536) config.refuse("more than 65536 experts");
    const bool whole = type == "gpt2" || type == "stablelm" || type == "gpt_neox" ||
                       type == "olmoe" || type == "starcoder2";
    if (whole && shape.hidden % shape.heads != 0) {
      config.refuse(
          fmt::format("the width {} is not a multiple of {} heads", shape.hidden, shape.heads));
    }
  }
  config.finish();
  shape.vocab_pad_to = TrainSpec::Model().vocab_pad_to;
  shape.padded_vocab = round_up(shape.vocab, shape.vocab_pad_to);
  return model;
}

}  // namespace mtl
