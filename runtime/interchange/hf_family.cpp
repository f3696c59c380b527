// Which family of Hugging Face's computes what a model of ours computes (hf_config.h).
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <numeric>
#include <utility>

#include "runtime/interchange/hf_config.h"
#include "runtime/interchange/hf_gpt_oss.h"
#include "runtime/interchange/hf_granite.h"
#include "runtime/interchange/hf_latent.h"
#include "runtime/interchange/hf_side_by_side.h"

namespace mtl {

namespace {

// GLM's attention: biases of queries, keys and values alone, or none, and a part of each head is
// turned. GLM-4 has norms on both sides of its blocks.
bool is_glm(const ModelShape& shape) {
  const bool plain = !shape.bias && !shape.qk_norm && shape.experts == 0 &&
                     shape.sliding_window == 0 && shape.unrotated_layers.empty() &&
                     !shape.parallel_residual && shape.embedding_scale == 1 &&
                     shape.rope_scaling.type == RopeScalingType::none;
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
                     shape.full_layers.empty() && shape.unrotated_layers.empty() &&
                     shape.rope_scaling.type != RopeScalingType::longrope;
  const bool neox = shape.kv_heads == shape.heads && shape.bias && shape.sliding_window == 0;
  return blocks && plain && !neox;
}

// GLM-4.5: dots.llm1's mixture, where its attention is another.
bool is_glm4_moe(const ModelShape& shape) {
  return shape.experts > 0 && shape.moe_scores.sigmoid && !shape.norms_outputs() &&
         !shape.qk_norm_whole && (shape.qkv_bias || !shape.qk_norm || shape.rope_fraction != 1);
}

// Biases of the output projection and the feed-forward block, and not of queries, keys and values.
bool is_seed_oss(const ModelShape& shape) {
  return shape.bias && !shape.qkv_bias && !shape.qk_norm && shape.experts == 0 &&
         shape.sliding_window == 0 && !shape.norms_outputs();
}

// Where a model with GELU as a gate is no Gemma, of whatever number.
void add_gemma_notes(const ModelShape& shape, const std::string& name,
                     std::vector<std::string>& notes) {
  const auto add = [&](bool obstacle, const std::string& setting, const std::string& has) {
    if (obstacle) notes.push_back(setting + ": " + name + has);
  };
  const double scale = std::sqrt(static_cast<double>(shape.hidden));
  add(std::abs(shape.embedding_scale - scale) > 1e-5 * scale, "model.embedding_scale",
      "'s is the square root of model.hidden");
  add(shape.norm != NormType::rmsnorm, "model.norm.type", "'s is rmsnorm");
  add(shape.position != PositionType::rope, "model.position.type", "'s is rope");
  add(shape.rope_fraction != 1, "model.position.fraction", " rotates whole heads");
  add(shape.bias || shape.qkv_bias, "model.bias", " has no biases");
  add(shape.experts > 0, "model.moe", " has no experts");
  add(shape.parallel_residual, "model.parallel_residual", " has none");
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
  if (shape.norms_outputs() && shape.activation == Activation::geglu) {
    add_gemma_notes(shape, shape.qk_norm ? "Gemma 3" : "Gemma 2", notes);
    add(shape.norm_place != NormPlace::both, "model.norm.place: Gemma 2's and Gemma 3's is both");
    add(shape.qk_norm_whole, "model.qk_norm_whole: Gemma 3 has a norm of every head");
    return notes;
  }
  if (shape.norms_outputs() &&
      (shape.norm != NormType::rmsnorm || shape.activation != Activation::swiglu)) {
    add(true,
        "model.norm.place: OLMo 2 and EXAONE 4 have norms behind blocks, with rmsnorm and swiglu, "
        "and Gemma 2 and 3, with rmsnorm and geglu");
    return notes;
  }
  if (shape.activation == Activation::geglu) {
    add_gemma_notes(shape, "Gemma", notes);
    add(shape.qk_norm, "model.qk_norm: Gemma has none");
    add(shape.sliding_window > 0, "model.sliding_window: Gemma has none");
    return notes;
  }
  add(shape.embedding_scale != 1,
      "model.embedding_scale: Gemma has it, with geglu, and Granite, with rmsnorm and swiglu");
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
    add(shape.parallel_residual,
        "model.parallel_residual: StableLM's blocks side by side share a norm (model.norm.shared)");
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
  RopeScaling plain_longrope = shape.rope_scaling;
  plain_longrope.attention_factor = 0;
  plain_longrope.factor = std::max(1.0, ratio);
  add(longrope && shape.rope_scaling.attention_factor > 0 &&
          std::abs(rope_amplitude(shape.rope_scaling) - rope_amplitude(plain_longrope)) > 1e-9,
      "model.position.scaling.attention_factor: Phi-3's follows from model.max_seq / "
      "original_max_seq");
  const bool glm4_moe = is_glm4_moe(shape);
  add(shape.rope_fraction != 1 && !plain && !glm4_moe,
      "model.position.fraction: StableLM and GPT-NeoX have it, with layernorm, Phi-3, without "
      "biases, model.qk_norm, experts and scalings beside longrope, GLM, with biases of queries, "
      "keys and values alone, and GLM-4.5, with experts by sigmoids");
  add(gelu, "model.activation gelu: only GPT-2 and GPT-NeoX have it, with layernorm");
  add(shape.parallel_residual,
      "model.parallel_residual: only GPT-NeoX has it, with layernorm, GELU and rope");
  add(shape.position != PositionType::rope,
      "model.position.type: the families beside GPT-2 have rope");
  add(shape.qk_norm && shape.qkv_bias && !glm4_moe,
      "model.qk_norm with biases: Qwen3 has none, and GLM-4.5 experts by sigmoids");
  add(shape.bias && !shape.qkv_bias && !is_seed_oss(shape),
      "biases everywhere but of queries, keys and values: Seed-OSS has them, without "
      "model.qk_norm, experts, windows and norms behind blocks");
  if (shape.norms_outputs()) {
    // OLMo 2 or EXAONE 4 but for these.
    add(shape.norm_place == NormPlace::both,
        "model.norm.place both: GLM-4 has it, without model.bias, qk_norm, windows, experts and "
        "scaled positions");
    if (shape.norm_place == NormPlace::both) return notes;
    add(!shape.qk_norm, "model.norm.place without model.qk_norm: OLMo 2 and EXAONE 4 have both");
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
  if (shape.moe_scores.sigmoid) {
    // dots.llm1, GLM-4.5, or nothing.
    std::vector<int64_t> first(shape.dense_layers.size());
    std::iota(first.begin(), first.end(), 0);
    const ModelShape::MoeScores& scores = shape.moe_scores;
    add(!shape.expert_bias,
        "model.moe.score sigmoid without expert_bias: dots.llm1 and GLM-4.5 have both");
    add(glm4_moe && shape.sliding_window > 0,
        "model.sliding_window: GLM-4.5 has none, and dots.llm1 no biases and model.qk_norm, and "
        "it rotates whole heads");
    add(shape.shared_gate,
        "model.moe.shared_gate with sigmoids: dots.llm1 and GLM-4.5 have no gate");
    add(shape.shared_ffn == 0 || shape.ffn == 0 || shape.shared_ffn % shape.ffn != 0,
        "model.moe.shared_ffn: that of dots.llm1 and GLM-4.5 is one or several times the width of "
        "an expert");
    add(shape.dense_layers != first,
        "model.moe.dense_layers: those of dots.llm1 and GLM-4.5 are the first ones");
    add(scores.groups > 1 && scores.best_of_group(shape.experts_per_token) != 2,
        "model.moe.group_best: groups of dots.llm1 and GLM-4.5 have the sum of two experts' scores "
        "(2)");
    return notes;
  }
  add(shape.moe_scores.scale != 1, "model.moe.scale: dots.llm1 and GLM-4.5 have it, with sigmoids");
  add(shape.moe_scores.groups > 1,
      "model.moe.groups: dots.llm1 and GLM-4.5 have them, with sigmoids");
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

// The family that is closest; what of it a model is not, the notes say.
std::string architecture_of(const ModelShape& shape) {
  if (shape.has_latents()) return latent_architecture(shape);
  if (is_near_gpt_oss(shape)) return "GptOssForCausalLM";
  if (is_near_granite(shape)) return granite_architecture(shape);
  if (is_side_by_side(shape)) return side_by_side_architecture(shape);
  if (shape.family() == Family::gpt2 && shape.experts == 0) return "GPT2LMHeadModel";
  if (is_glm(shape)) return shape.norms_outputs() ? "Glm4ForCausalLM" : "GlmForCausalLM";
  if (is_starcoder2(shape)) return "Starcoder2ForCausalLM";
  if (shape.activation == Activation::geglu) {
    if (!shape.norms_outputs()) return "GemmaForCausalLM";
    return shape.qk_norm ? "Gemma3ForCausalLM" : "Gemma2ForCausalLM";
  }
  if (shape.norm == NormType::layernorm) {
    return shape.activation == Activation::swiglu ? "StableLmForCausalLM" : "GPTNeoXForCausalLM";
  }
  const bool scaled = shape.rope_scaling.type != RopeScalingType::none;
  if (shape.norms_outputs()) {
    if (!shape.qk_norm_whole) return "Exaone4ForCausalLM";
    return shape.sliding_window > 0 || scaled ? "Olmo3ForCausalLM" : "Olmo2ForCausalLM";
  }
  if (shape.qk_norm_whole) return "OlmoeForCausalLM";
  if (is_glm4_moe(shape)) return "Glm4MoeForCausalLM";
  if (shape.experts > 0 && shape.moe_scores.sigmoid) return "Dots1ForCausalLM";
  if (shape.shared_ffn > 0) return "Qwen2MoeForCausalLM";
  if (shape.experts > 0) return shape.qk_norm ? "Qwen3MoeForCausalLM" : "MixtralForCausalLM";
  if (shape.qk_norm) return "Qwen3ForCausalLM";
  if (!shape.bias && shape.qkv_bias) return "Qwen2ForCausalLM";
  if (is_seed_oss(shape)) return "SeedOssForCausalLM";
  if (shape.rope_fraction != 1 || shape.rope_scaling.type == RopeScalingType::longrope) {
    return "Phi3ForCausalLM";
  }
  // Mistral, but for what its name has nothing for.
  const bool by_layer = !shape.full_layers.empty() || !shape.unrotated_layers.empty();
  if (by_layer || (shape.bias && shape.sliding_window > 0)) return "SmolLM3ForCausalLM";
  return shape.sliding_window > 0 ? "MistralForCausalLM" : "LlamaForCausalLM";
}

// What differs from layer to layer, and the scale of scores, where the family has it otherwise.
void add_layer_notes(const ModelShape& shape, const std::string& architecture,
                     std::vector<std::string>& notes) {
  const auto add = [&](bool obstacle, const char* note) {
    if (obstacle) notes.emplace_back(note);
  };
  const auto is_one_of = [&](std::initializer_list<const char*> all) {
    return std::find(all.begin(), all.end(), architecture) != all.end();
  };
  const bool gemma2 = architecture == "Gemma2ForCausalLM";
  const bool gemma3 = architecture == "Gemma3ForCausalLM";
  const bool olmo3 = architecture == "Olmo3ForCausalLM";
  const bool exaone = architecture == "Exaone4ForCausalLM";
  const bool scaled = shape.rope_scaling.type != RopeScalingType::none;
  add(!shape.full_layers.empty() &&
          !is_one_of({"Gemma2ForCausalLM", "Gemma3ForCausalLM", "Olmo3ForCausalLM",
                      "Exaone4ForCausalLM", "SmolLM3ForCausalLM", "Qwen2ForCausalLM",
                      "Qwen3ForCausalLM", "Dots1ForCausalLM"}),
      "model.full_attention: all layers of the closest family have a window, or none has");
  if (exaone && shape.sliding_window > 0) {
    add(shape.unrotated_layers != shape.full_layers,
        "model.position.skip: EXAONE 4's are the layers of model.full_attention");
  } else {
    add(!shape.unrotated_layers.empty() && architecture != "SmolLM3ForCausalLM",
        "model.position.skip: SmolLM3 has it, without model.qk_norm, experts and partial rotation, "
        "and EXAONE 4, with model.full_attention");
  }
  if (olmo3 && shape.sliding_window > 0) {
    add(scaled ? shape.window_rope_base != shape.rope_base : shape.window_rope_base > 0,
        "model.position.window_base: OLMo 3's is model.position.base");
  } else {
    add(gemma3 && shape.sliding_window > 0 && shape.window_rope_base == 0 && scaled,
        "model.position.window_base: Gemma 3 scales no layers with a window");
    add(shape.window_rope_base > 0 && !gemma3,
        "model.position.window_base: only Gemma 3 and OLMo 3 have it, with norms behind blocks");
  }
  add(shape.attention_scale > 0 && !gemma2 && !gemma3,
      "model.attention_scale: only Gemma 2 and 3 have another than 1 / sqrt(model.head_dim), and "
      "Granite, with rmsnorm and swiglu");
  add(shape.attention_cap > 0 && !gemma2, "model.attention_cap: only Gemma 2 has one");
  add(shape.logit_cap > 0 && !gemma2, "model.logit_cap: only Gemma 2 has one");
}

// What one family alone has, or two.
void add_scale_notes(const ModelShape& shape, const std::string& architecture,
                     std::vector<std::string>& notes) {
  const bool granite = architecture.starts_with("Granite");
  const bool command = architecture.starts_with("Cohere");
  const auto add = [&](bool obstacle, const char* note) {
    if (obstacle) notes.emplace_back(note);
  };
  add(shape.residual_scale != 1 && !granite,
      "model.residual_scale: only Granite has it, with rmsnorm and swiglu");
  add(shape.logit_scale != 1 && !granite && !command,
      "model.logit_scale: only Granite has it, with rmsnorm and swiglu, and Command R");
  add(shape.head_bias && architecture != "PhiForCausalLM",
      "model.head_bias: only Phi-2 has it, with model.norm.shared");
  add(shape.norm_bias && !command && architecture != "GPT2LMHeadModel",
      "model.norm.bias: layer norms have one but in Command R, and in a GPT-2 as the linear "
      "layers");
}

}  // namespace

HfModel hf_model_of(const ModelShape& shape) {
  std::string architecture = architecture_of(shape);
  std::vector<std::string> notes;
  const bool whole = shape.family() == Family::gpt2 && shape.experts == 0;
  if (shape.has_latents()) {
    notes = latent_obstacles(shape);
  } else if (is_near_gpt_oss(shape)) {
    notes = gpt_oss_obstacles(shape);
  } else if (is_near_granite(shape)) {
    notes = granite_obstacles(shape);
  } else if (is_side_by_side(shape)) {
    notes = side_by_side_obstacles(shape);
  } else {
    if (!whole && !is_glm(shape) && !is_starcoder2(shape)) notes = obstacles(shape);
    add_layer_notes(shape, architecture, notes);
  }
  add_scale_notes(shape, architecture, notes);
  if (!notes.empty()) {
    throw Error(Exit::data,
                {.code = "export.family",
                 .what = "no family of Hugging Face's computes what this model computes",
                 .notes = std::move(notes),
                 .help = "mtl ckpt merge writes its tensors under their own names, for a program "
                         "of yours"});
  }
  return {shape, std::move(architecture)};
}

}  // namespace mtl
