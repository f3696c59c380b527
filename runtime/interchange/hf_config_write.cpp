// Writing config.json (hf_config.h).
#include <algorithm>
#include <cmath>
#include <numeric>

#include <nlohmann/json.hpp>

#include "runtime/interchange/hf_config.h"
#include "runtime/interchange/hf_rope.h"

namespace mtl {

namespace {

// GLM's attention: biases of queries, keys and values alone, or none, and a part of each head is
// turned. GLM-4 has norms on both sides of its blocks.
bool is_glm(const ModelShape& shape) {
  const bool plain = !shape.bias && !shape.qk_norm && shape.experts == 0 &&
                     shape.sliding_window == 0 && !shape.parallel_residual &&
                     shape.embedding_scale == 1 && shape.rope_scaling.type == RopeScalingType::none;
  const bool blocks = shape.norm == NormType::rmsnorm && shape.activation == Activation::swiglu &&
                      shape.position == PositionType::rope;
  const bool partial = shape.rope_fraction != 1 && shape.qkv_bias;
  return plain && blocks &&
         (shape.norm_place == NormPlace::both || (partial && !shape.norms_outputs()));
}

// GPT-NeoX's blocks one behind the other, with key heads that are shared, a window, or no biases.
bool is_starcoder2(const ModelShape& shape) {
  const bool blocks = shape.norm == NormType::layernorm && !shape.gated() &&
                      shape.position == PositionType::rope && shape.rope_fraction == 1;
  const bool plain = !shape.parallel_residual && !shape.qk_norm && shape.experts == 0 &&
                     shape.embedding_scale == 1 && !shape.norms_outputs() &&
                     shape.bias == shape.qkv_bias && shape.heads * shape.head_dim == shape.hidden &&
                     shape.rope_scaling.type != RopeScalingType::longrope;
  const bool neox = shape.kv_heads == shape.heads && shape.bias && shape.sliding_window == 0;
  return blocks && plain && !neox;
}

std::vector<std::string> obstacles(const ModelShape& shape) {
  std::vector<std::string> notes;
  const auto add = [&](bool obstacle, const char* note) {
    if (obstacle) notes.emplace_back(note);
  };
  const bool longrope = shape.rope_scaling.type == RopeScalingType::longrope;
  if (shape.norm != NormType::rmsnorm || shape.activation != Activation::swiglu) {
    add(longrope, "model.position.scaling longrope: Phi-3 has it, with rmsnorm and swiglu");
  }
  if (shape.norms_outputs() &&
      (shape.norm != NormType::rmsnorm || shape.activation != Activation::swiglu)) {
    add(true,
        "model.norm.place: OLMo 2 and EXAONE 4 have norms behind blocks, with rmsnorm and swiglu");
    return notes;
  }
  if (shape.activation == Activation::geglu) {
    // Gemma but for these.
    const double scale = std::sqrt(static_cast<double>(shape.hidden));
    add(std::abs(shape.embedding_scale - scale) > 1e-5 * scale,
        "model.embedding_scale: Gemma's is the square root of model.hidden");
    add(shape.norm != NormType::rmsnorm, "model.norm.type: Gemma's is rmsnorm");
    add(shape.position != PositionType::rope, "model.position.type: Gemma's is rope");
    add(shape.rope_fraction != 1, "model.position.fraction: Gemma rotates whole heads");
    add(shape.bias || shape.qkv_bias, "model.bias: Gemma has no biases");
    add(shape.qk_norm, "model.qk_norm: Gemma has none");
    add(shape.sliding_window > 0, "model.sliding_window: Gemma has none");
    add(shape.experts > 0, "model.moe: Gemma has no experts");
    add(shape.parallel_residual, "model.parallel_residual: Gemma has none");
    return notes;
  }
  add(shape.embedding_scale != 1, "model.embedding_scale: Gemma has it, with geglu");
  const bool gelu = shape.activation != Activation::swiglu;
  if (shape.norm == NormType::layernorm && gelu && shape.position == PositionType::learned) {
    // GPT-2 but for these.
    add(shape.kv_heads != shape.heads, "model.kv_heads: GPT-2 has as many as model.heads");
    add(shape.heads * shape.head_dim != shape.hidden,
        "model.head_dim: GPT-2's is model.hidden / model.heads");
    add(shape.qkv_bias != shape.bias, "model.qkv_bias: GPT-2 has all biases or none");
    add(shape.qk_norm, "model.qk_norm: GPT-2 has none");
    add(shape.sliding_window > 0, "model.sliding_window: GPT-2 has none");
    add(shape.experts > 0, "model.moe: GPT-2 has no experts");
    add(shape.parallel_residual, "model.parallel_residual: GPT-2 has none");
    return notes;
  }
  if (shape.norm == NormType::layernorm && gelu && shape.position == PositionType::rope) {
    // GPT-NeoX but for these.
    add(shape.kv_heads != shape.heads, "model.kv_heads: GPT-NeoX has as many as model.heads");
    add(shape.heads * shape.head_dim != shape.hidden,
        "model.head_dim: GPT-NeoX's is model.hidden / model.heads");
    add(!shape.bias || !shape.qkv_bias, "model.bias: GPT-NeoX has all biases");
    add(shape.qk_norm, "model.qk_norm: GPT-NeoX has none");
    add(shape.sliding_window > 0, "model.sliding_window: GPT-NeoX has none");
    add(shape.experts > 0, "model.moe: GPT-NeoX has no experts");
    return notes;
  }
  if (shape.norm == NormType::layernorm && shape.activation == Activation::swiglu &&
      shape.position == PositionType::rope) {
    // StableLM but for these.
    add(shape.heads * shape.head_dim != shape.hidden,
        "model.head_dim: StableLM's is model.hidden / model.heads");
    add(shape.bias, "model.bias: StableLM has biases of queries, keys and values alone, or none");
    add(shape.qk_norm, "model.qk_norm: StableLM has no RMS norms of queries and keys");
    add(shape.sliding_window > 0, "model.sliding_window: StableLM has none");
    add(shape.experts > 0, "model.moe: StableLM has no experts");
    add(shape.parallel_residual, "model.parallel_residual: StableLM's blocks have one norm then");
    return notes;
  }
  add(shape.norm != NormType::rmsnorm,
      "model.norm.type layernorm: only GPT-2 has it, with learned positions, GELU and as many key "
      "heads as heads, StableLM, with rope and SwiGLU, and GPT-NeoX, with rope and GELU");
  const bool olmo = shape.qk_norm_whole;
  const bool plain = !shape.bias && !shape.qkv_bias && !shape.qk_norm && shape.experts == 0 &&
                     !shape.norms_outputs() &&
                     (shape.rope_scaling.type == RopeScalingType::none || longrope);
  add(longrope && !plain,
      "model.position.scaling longrope: Phi-3 has it, without biases, model.qk_norm and experts");
  const double ratio =
      static_cast<double>(shape.max_seq) / static_cast<double>(shape.rope_scaling.original_max_seq);
  add(longrope && shape.rope_scaling.attention_factor == 0 &&
          std::abs(std::max(1.0, ratio) - shape.rope_scaling.factor) > 1e-9 * ratio,
      "model.position.scaling.factor: Phi-3's is model.max_seq / original_max_seq");
  add(shape.rope_fraction != 1 && !plain,
      "model.position.fraction: StableLM and GPT-NeoX have it, with layernorm, Phi-3, without "
      "biases, model.qk_norm, experts and scalings beside longrope, and GLM, with biases of "
      "queries, keys and values alone");
  add(gelu, "model.activation gelu: only GPT-2 and GPT-NeoX have it, with layernorm");
  add(shape.parallel_residual,
      "model.parallel_residual: only GPT-NeoX has it, with layernorm, GELU and rope");
  add(shape.position != PositionType::rope,
      "model.position.type: the families beside GPT-2 have rope");
  add(shape.qk_norm && shape.qkv_bias, "model.qk_norm with biases: Qwen3 has none");
  add(shape.bias && !shape.qkv_bias, "biases everywhere but of queries, keys and values");
  add(shape.bias && shape.sliding_window > 0, "model.sliding_window with biases everywhere");
  if (shape.norms_outputs()) {
    // OLMo 2 or EXAONE 4 but for these.
    add(shape.norm_place == NormPlace::both,
        "model.norm.place both: GLM-4 has it, without model.bias, qk_norm, windows, experts and "
        "scaled positions");
    if (shape.norm_place == NormPlace::both) return notes;
    add(!shape.qk_norm, "model.norm.place without model.qk_norm: OLMo 2 and EXAONE 4 have both");
    add(shape.sliding_window > 0, "model.sliding_window: OLMo 2 has none");
    add(olmo && shape.rope_scaling.type != RopeScalingType::none,
        "model.position.scaling: OLMo 2 has none");
    add(shape.experts > 0, "model.moe: OLMo 2 has no experts, and OLMoE its norms before blocks");
    return notes;
  }
  if (olmo) {
    // OLMoE but for these.
    add(shape.experts == 0,
        "model.qk_norm_whole: OLMo 2 has it, with model.norm.place output, and "
        "OLMoE, with experts");
    add(shape.heads * shape.head_dim != shape.hidden,
        "model.head_dim: OLMoE's is model.hidden / model.heads");
    add(shape.sliding_window > 0, "model.sliding_window: OLMoE has none");
    add(shape.moe_scores.sigmoid, "model.moe.score sigmoid: OLMoE's is softmax");
    add(shape.moe_scores.scale != 1, "model.moe.scale: OLMoE has none");
    add(shape.moe_scores.groups > 1, "model.moe.groups: OLMoE has none");
    add(shape.shared_ffn > 0, "model.moe.shared_ffn: OLMoE has none");
    add(!shape.dense_layers.empty(), "model.moe.dense_layers: OLMoE has none");
    return notes;
  }
  if (shape.experts == 0) return notes;
  add(shape.bias, "experts with biases: no family has them");
  if (shape.moe_scores.sigmoid) {
    // dots.llm1, or nothing.
    std::vector<int64_t> first(shape.dense_layers.size());
    std::iota(first.begin(), first.end(), 0);
    const ModelShape::MoeScores& scores = shape.moe_scores;
    add(!shape.expert_bias, "model.moe.score sigmoid without expert_bias: dots.llm1 has both");
    add(!shape.qk_norm, "model.moe.score sigmoid without model.qk_norm: dots.llm1 has both");
    add(shape.shared_gate, "model.moe.shared_gate with sigmoids: dots.llm1 has no gate");
    add(shape.shared_ffn == 0 || shape.ffn == 0 || shape.shared_ffn % shape.ffn != 0,
        "model.moe.shared_ffn: dots.llm1's is one or several times the width of an expert");
    add(shape.dense_layers != first, "model.moe.dense_layers: dots.llm1's are the first ones");
    add(scores.groups > 1 && shape.experts_per_token / scores.group_topk != 2,
        "model.moe.group_topk: dots.llm1's groups have the sum of two experts' scores (topk / 2)");
    return notes;
  }
  add(shape.moe_scores.scale != 1, "model.moe.scale: dots.llm1 has it, with sigmoids");
  add(shape.moe_scores.groups > 1, "model.moe.groups: dots.llm1 has them, with sigmoids");
  if (shape.shared_ffn > 0) {
    add(!shape.shared_gate, "model.moe.shared_ffn without shared_gate: Qwen2's mixtures have both");
    add(shape.qk_norm, "model.moe.shared_ffn with model.qk_norm: Qwen2's mixtures have no norms");
  } else {
    add(shape.qkv_bias, "biases beside experts: only Qwen2's mixtures have them, with shared_ffn");
    add(!shape.qk_norm && !shape.dense_layers.empty(),
        "model.moe.dense_layers: Qwen's mixtures can have them, with model.qk_norm or shared_ffn");
    add(!shape.qk_norm && !shape.moe_scores.normalize,
        "model.moe.normalize false: Qwen's mixtures can have it, with model.qk_norm or shared_ffn");
  }
  return notes;
}

}  // namespace

HfModel hf_model_of(const ModelShape& shape) {
  if (shape.family() == Family::gpt2 && shape.experts == 0) return {shape, "GPT2LMHeadModel"};
  if (is_glm(shape)) {
    return {shape, shape.norms_outputs() ? "Glm4ForCausalLM" : "GlmForCausalLM"};
  }
  if (is_starcoder2(shape)) return {shape, "Starcoder2ForCausalLM"};
  if (std::vector<std::string> notes = obstacles(shape); !notes.empty()) {
    throw Error(Exit::data,
                {.code = "export.family",
                 .what = "no family of Hugging Face's computes what this model computes",
                 .notes = std::move(notes),
                 .help = "mtl ckpt merge writes its tensors under their own names, for a program "
                         "of yours"});
  }
  if (shape.norm == NormType::layernorm) {
    return {shape,
            shape.activation == Activation::swiglu ? "StableLmForCausalLM" : "GPTNeoXForCausalLM"};
  }
  if (shape.activation == Activation::geglu) return {shape, "GemmaForCausalLM"};
  if (shape.norms_outputs()) {
    return {shape, shape.qk_norm_whole ? "Olmo2ForCausalLM" : "Exaone4ForCausalLM"};
  }
  if (shape.qk_norm_whole) return {shape, "OlmoeForCausalLM"};
  if (shape.experts > 0 && shape.moe_scores.sigmoid) return {shape, "Dots1ForCausalLM"};
  if (shape.shared_ffn > 0) return {shape, "Qwen2MoeForCausalLM"};
  if (shape.experts > 0)
    return {shape, shape.qk_norm ? "Qwen3MoeForCausalLM" : "MixtralForCausalLM"};
  if (shape.qk_norm) return {shape, "Qwen3ForCausalLM"};
  if (!shape.bias && shape.qkv_bias) return {shape, "Qwen2ForCausalLM"};
  if (shape.rope_fraction != 1 || shape.rope_scaling.type == RopeScalingType::longrope) {
    return {shape, "Phi3ForCausalLM"};
  }
  if (shape.sliding_window > 0) return {shape, "MistralForCausalLM"};
  return {shape, "LlamaForCausalLM"};
}

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
  const auto switched_window = [&] {
    config["use_sliding_window"] = shape.sliding_window > 0;
    config["sliding_window"] = window();
    // Layers below this one would see everything.
    config["max_window_layers"] = shape.sliding_window > 0 ? 0 : shape.layers;
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
    config["use_parallel_residual"] = false;
    config["hidden_dropout"] = shape.dropout_hidden;
    for (const char* other : {"rms_norm_eps", "head_dim"}) config.erase(other);
  } else if (model.architecture == "Dots1ForCausalLM") {
    config["model_type"] = "dots1";
    config["attention_bias"] = false;
    config["n_routed_experts"] = shape.experts;
    config["num_experts_per_tok"] = shape.experts_per_token;
    config["moe_intermediate_size"] = shape.ffn;
    config["n_shared_experts"] = shape.shared_ffn / shape.ffn;
    config["norm_topk_prob"] = shape.moe_scores.normalize;
    config["routed_scaling_factor"] = shape.moe_scores.scale;
    config["n_group"] = shape.moe_scores.groups;
    config["topk_group"] = shape.moe_scores.group_topk;
    config["first_k_dense_replace"] = shape.dense_layers.size();
    config["sliding_window"] = window();
    config["max_window_layers"] = shape.sliding_window > 0 ? 0 : shape.layers;
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
    if (shape.sliding_window > 0) {
      config["layer_types"] =
          std::vector<std::string>(static_cast<size_t>(shape.layers), "sliding_attention");
    }
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
    config["sliding_window"] = nullptr;
    config["layer_types"] =
        std::vector<std::string>(static_cast<size_t>(shape.layers), "full_attention");
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
  } else if (model.architecture == "Phi3ForCausalLM") {
    config["model_type"] = "phi3";
    config["partial_rotary_factor"] = shape.rope_fraction;
    config["original_max_position_embeddings"] =
        shape.rope_scaling.type == RopeScalingType::longrope ? shape.rope_scaling.original_max_seq
                                                             : shape.max_seq;
    config["sliding_window"] = window();
    // The family's own, where nothing is said, is a row that a small vocabulary has not.
    config["pad_token_id"] = nullptr;
  } else if (model.architecture == "MistralForCausalLM") {
    config["model_type"] = "mistral";
    config["sliding_window"] = window();
  } else {
    config["model_type"] = "llama";
    config["attention_bias"] = shape.bias;
    config["mlp_bias"] = shape.bias;
  }
  return config;
}

}  // namespace mtl
