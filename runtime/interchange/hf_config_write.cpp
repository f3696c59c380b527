// Writing config.json (hf_config.h).
#include <cmath>

#include <nlohmann/json.hpp>

#include "runtime/interchange/hf_config.h"
#include "runtime/interchange/hf_experts.h"
#include "runtime/interchange/hf_gpt_oss.h"
#include "runtime/interchange/hf_granite.h"
#include "runtime/interchange/hf_latent.h"
#include "runtime/interchange/hf_rope.h"
#include "runtime/interchange/hf_side_by_side.h"
#include "runtime/interchange/hf_windows.h"

namespace mtl {

namespace {

// What the square root of is that scores are divided by, as the number it was made of.
double query_scalar(const ModelShape& shape) {
  if (shape.attention_scale == 0) return static_cast<double>(shape.head_dim);
  const double exact = 1 / (shape.attention_scale * shape.attention_scale);
  return std::abs(exact - std::round(exact)) < 1e-9 * exact ? std::round(exact) : exact;
}

}  // namespace

nlohmann::ordered_json hf_config_of(const HfModel& model, const HfTokens& tokens,
                                    const std::string& dtype) {
  const ModelShape& shape = model.shape;
  const auto id = [](const std::optional<int64_t>& token) {
    return token ? nlohmann::ordered_json(*token) : nlohmann::ordered_json();
  };
  const bool gpt2 = model.architecture == "GPT2LMHeadModel";
  const char* const gelu = shape.activation == Activation::gelu_exact ? "gelu" : "gelu_new";
  nlohmann::ordered_json config = {{"architectures", {model.architecture}},
                                   {"bos_token_id", id(tokens.bos)},
                                   {"eos_token_id", id(tokens.eos)},
                                   {"vocab_size", shape.vocab},
                                   {"initializer_range", shape.init_std},
                                   {"tie_word_embeddings", shape.tie_embeddings},
                                   {"torch_dtype", dtype},
                                   {"use_cache", true}};
  if (gpt2) {
    config.update(nlohmann::ordered_json{{"model_type", "gpt2"},
                                         {"n_layer", shape.layers},
                                         {"n_embd", shape.hidden},
                                         {"n_head", shape.heads},
                                         {"n_inner", shape.ffn},
                                         {"n_positions", shape.max_seq},
                                         {"activation_function", gelu},
                                         {"layer_norm_epsilon", shape.norm_eps},
                                         {"embd_pdrop", shape.dropout_hidden},
                                         {"resid_pdrop", shape.dropout_hidden},
                                         {"attn_pdrop", shape.dropout_attention}});
    return config;
  }
  const int64_t ffn = shape.dense_layers.empty() ? shape.ffn : shape.dense_layer_ffn;
  config.update(nlohmann::ordered_json{{"num_hidden_layers", shape.layers},
                                       {"hidden_size", shape.hidden},
                                       {"num_attention_heads", shape.heads},
                                       {"num_key_value_heads", shape.kv_heads},
                                       {"head_dim", shape.head_dim},
                                       {"intermediate_size", ffn},
                                       {"max_position_embeddings", shape.max_seq},
                                       {"hidden_act", "silu"},
                                       {"rms_norm_eps", shape.norm_eps},
                                       {"rope_theta", shape.rope_base},
                                       {"rope_scaling", hf_rope_scaling(shape.rope_scaling)},
                                       {"attention_dropout", shape.dropout_attention}});
  const auto window = [&] {
    return shape.sliding_window > 0 ? nlohmann::ordered_json(shape.sliding_window)
                                    : nlohmann::ordered_json();
  };
  // Layers below that number see everything; where others do so too, there is a list.
  const auto full_below = [&] {
    int64_t first = 0;
    while (first < shape.layers && shape.window_of(first) == 0) ++first;
    config["max_window_layers"] = first;
    if (first != std::ssize(shape.full_layers) && shape.sliding_window > 0) {
      config["layer_types"] = hf_layer_types(shape);
    }
  };
  const auto switched_window = [&] {
    config["use_sliding_window"] = shape.sliding_window > 0;
    config["sliding_window"] = window();
    full_below();
  };
  const auto qwen_experts = [&] {
    config["num_experts"] = shape.experts;
    config["num_experts_per_tok"] = shape.experts_per_token;
    config["moe_intermediate_size"] = shape.ffn;
    config["norm_topk_prob"] = shape.moe_scores.normalize;
    config["decoder_sparse_step"] = 1;
    config["mlp_only_layers"] = shape.dense_layers;
    switched_window();
  };
  if (model.architecture == "GPTNeoXForCausalLM") {
    config["model_type"] = "gpt_neox";
    config["hidden_act"] = gelu;
    config["layer_norm_eps"] = shape.norm_eps;
    config["rotary_emb_base"] = shape.rope_base;
    config["rotary_pct"] = shape.rope_fraction;
    config["use_parallel_residual"] = shape.parallel_residual;
    config["attention_bias"] = true;
    config["hidden_dropout"] = shape.dropout_hidden;
    for (const char* other : {"rms_norm_eps", "head_dim", "num_key_value_heads", "rope_theta"}) {
      config.erase(other);
    }
  } else if (model.architecture == "Starcoder2ForCausalLM") {
    config["model_type"] = "starcoder2";
    config["hidden_act"] = gelu;
    config["norm_epsilon"] = shape.norm_eps;
    config["use_bias"] = shape.bias;
    config["sliding_window"] = window();
    config["residual_dropout"] = shape.dropout_hidden;
    config["embedding_dropout"] = shape.dropout_hidden;
    for (const char* other : {"rms_norm_eps", "head_dim"}) config.erase(other);
  } else if (model.architecture == "StableLmForCausalLM") {
    config["model_type"] = "stablelm";
    config["layer_norm_eps"] = shape.norm_eps;
    config["partial_rotary_factor"] = shape.rope_fraction;
    config["use_qkv_bias"] = shape.qkv_bias;
    config["qk_layernorm"] = false;
    config["use_parallel_residual"] = shape.parallel_residual;
    config["hidden_dropout"] = shape.dropout_hidden;
    for (const char* other : {"rms_norm_eps", "head_dim"}) config.erase(other);
  } else if (shape.has_latents()) {
    write_latents(shape, config);
  } else if (model.architecture == "GptOssForCausalLM") {
    write_gpt_oss(shape, config);
  } else if (model.architecture.starts_with("Granite")) {
    write_granite(shape, config);
  } else if (model.architecture.starts_with("Cohere")) {
    write_cohere(shape, config);
  } else if (model.architecture == "PhiForCausalLM") {
    write_phi(shape, config);
  } else if (model.architecture == "Dots1ForCausalLM") {
    config["model_type"] = "dots1";
    config["attention_bias"] = false;
    write_deepseek_experts(shape, config);
    config["sliding_window"] = window();
    full_below();
  } else if (model.architecture == "Glm4MoeForCausalLM") {
    config["model_type"] = "glm4_moe";
    config["attention_bias"] = shape.qkv_bias;
    config["use_qk_norm"] = shape.qk_norm;
    config["partial_rotary_factor"] = shape.rope_fraction;
    write_deepseek_experts(shape, config);
  } else if (model.architecture == "Qwen3MoeForCausalLM") {
    config["model_type"] = "qwen3_moe";
    config["attention_bias"] = false;
    qwen_experts();
  } else if (model.architecture == "Qwen2MoeForCausalLM") {
    config["model_type"] = "qwen2_moe";
    config["qkv_bias"] = shape.qkv_bias;
    config["shared_expert_intermediate_size"] = shape.shared_ffn;
    qwen_experts();
    // transformers 5 reads 'max_window_layers' the other way round for this family.
    if (shape.sliding_window > 0) config["layer_types"] = hf_layer_types(shape);
  } else if (model.architecture == "MixtralForCausalLM") {
    config["model_type"] = "mixtral";
    config["num_local_experts"] = shape.experts;
    config["num_experts_per_tok"] = shape.experts_per_token;
    config["sliding_window"] = window();
  } else if (model.architecture == "GlmForCausalLM" || model.architecture == "Glm4ForCausalLM") {
    config["model_type"] = shape.norms_outputs() ? "glm4" : "glm";
    config["attention_bias"] = shape.qkv_bias;
    config["partial_rotary_factor"] = shape.rope_fraction;
    config["pad_token_id"] = nullptr;
  } else if (model.architecture == "Olmo2ForCausalLM") {
    config["model_type"] = "olmo2";
    config["attention_bias"] = false;
    config["pad_token_id"] = nullptr;
  } else if (model.architecture == "Olmo3ForCausalLM") {
    config["model_type"] = "olmo3";
    config["attention_bias"] = false;
    config["pad_token_id"] = nullptr;
    // Of layers that there are not, where there is no window.
    config["sliding_window"] = shape.sliding_window > 0 ? shape.sliding_window : shape.max_seq;
    config["layer_types"] = hf_layer_types(shape);
  } else if (model.architecture == "OlmoeForCausalLM") {
    config["model_type"] = "olmoe";
    config["attention_bias"] = false;
    config["clip_qkv"] = nullptr;
    config["num_experts"] = shape.experts;
    config["num_experts_per_tok"] = shape.experts_per_token;
    config["norm_topk_prob"] = shape.moe_scores.normalize;
    config["pad_token_id"] = nullptr;
    config.erase("head_dim");
  } else if (model.architecture == "Exaone4ForCausalLM") {
    config["model_type"] = "exaone4";
    config["sliding_window"] = window();
    config["layer_types"] = hf_layer_types(shape);
  } else if (model.architecture == "Qwen3ForCausalLM") {
    config["model_type"] = "qwen3";
    config["attention_bias"] = false;
    switched_window();
  } else if (model.architecture == "Qwen2ForCausalLM") {
    config["model_type"] = "qwen2";
    switched_window();
  } else if (model.architecture == "GemmaForCausalLM") {
    config["model_type"] = "gemma";
    config["attention_bias"] = false;
    // Which of the two counts depends on the version.
    for (const char* key : {"hidden_act", "hidden_activation"}) config[key] = "gelu_pytorch_tanh";
    config["pad_token_id"] = nullptr;
  } else if (model.architecture == "Gemma2ForCausalLM" ||
             model.architecture == "Gemma3ForCausalLM") {
    const auto cap = [](double value) {
      return value > 0 ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
    };
    config["model_type"] = shape.qk_norm ? "gemma3_text" : "gemma2";
    config["attention_bias"] = false;
    config.erase("hidden_act");
    config["hidden_activation"] = "gelu_pytorch_tanh";
    config["query_pre_attn_scalar"] = query_scalar(shape);
    if (shape.qk_norm) {
      config["rope_local_base_freq"] =
          shape.window_rope_base > 0 ? shape.window_rope_base : shape.rope_base;
    }
    config["attn_logit_softcapping"] = cap(shape.attention_cap);
    config["final_logit_softcapping"] = cap(shape.logit_cap);
    // Of layers that there are not, where there is no window.
    config["sliding_window"] = shape.sliding_window > 0 ? shape.sliding_window : shape.max_seq;
    config["layer_types"] = hf_layer_types(shape);
    config["pad_token_id"] = nullptr;
  } else if (model.architecture == "Phi3ForCausalLM") {
    config["model_type"] = "phi3";
    config["partial_rotary_factor"] = shape.rope_fraction;
    config["original_max_position_embeddings"] =
        shape.rope_scaling.type == RopeScalingType::longrope ? shape.rope_scaling.original_max_seq
                                                             : shape.max_seq;
    config["sliding_window"] = window();
    // The family's own, where nothing is said, is a row that a small vocabulary has not.
    config["pad_token_id"] = nullptr;
  } else if (model.architecture == "SeedOssForCausalLM") {
    config["model_type"] = "seed_oss";
    config["attention_bias"] = shape.qkv_bias;
    config["attention_out_bias"] = config["mlp_bias"] = shape.bias;
    config["residual_dropout"] = shape.dropout_hidden;
    config["pad_token_id"] = nullptr;
  } else if (model.architecture == "MistralForCausalLM") {
    config["model_type"] = "mistral";
    config["sliding_window"] = window();
  } else {
    config["model_type"] = "llama";
    config["attention_bias"] = shape.bias;
    config["mlp_bias"] = shape.bias;
    if (model.architecture == "SmolLM3ForCausalLM") {
      config["model_type"] = "smollm3";
      config["no_rope_layers"] = hf_rotating_layers(shape);
      config["use_sliding_window"] = shape.sliding_window > 0;
      config["sliding_window"] = window();
      config["layer_types"] = hf_layer_types(shape);
      config["pad_token_id"] = nullptr;
    }
  }
  return config;
}

}  // namespace mtl
