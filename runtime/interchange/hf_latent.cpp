#include "runtime/interchange/hf_latent.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/interchange/hf_experts.h"
#include "runtime/interchange/hf_rope.h"

namespace mtl {

namespace {

// Of the norms of latents: both implementations have it in their code, whatever 'rms_norm_eps' is.
constexpr double kLatentEps = 1e-6;
constexpr double kMostMscale = 1000;  // as read_hf_rope takes it

bool is_second(const ModelShape& shape) {
  return shape.experts > 0 && !shape.moe_scores.sigmoid;
}

// The number of the fewest digits around `exact` of which `made` makes `wanted`; `exact` if none
// does. What was read comes out as it was written.
template <class Make>
double shortest(double exact, double wanted, Make made) {
  for (int digits = 1; digits <= 16; ++digits) {
    const double rounded = std::stod(fmt::format("{:.{}g}", exact, digits));
    if (made(rounded) == wanted) return rounded;
  }
  return exact;
}

// The scale of amplitudes that makes `amplitude` of YaRN's factor (yarn_amplitude).
double mscale_of(double amplitude, double factor) {
  return (amplitude - 1) / (0.1 * std::log(factor));
}

// What of the scale of scores is beside 1 / sqrt(head_dim).
double score_factor(const ModelShape& shape) {
  if (shape.attention_scale == 0) return 1;
  return shape.attention_scale * std::sqrt(static_cast<double>(shape.head_dim));
}

bool is_plain(double score_factor) {
  return std::abs(score_factor - 1) < 1e-9;
}

// Whether 'mscale_all_dim' can say it.
bool is_of_yarn(const ModelShape& shape) {
  const RopeScaling& scaling = shape.rope_scaling;
  if (scaling.type != RopeScalingType::yarn || scaling.factor <= 1) return false;
  const double amplitude = std::sqrt(score_factor(shape));
  return amplitude > 1 && mscale_of(amplitude, scaling.factor) <= kMostMscale;
}

// DeepSeek has an amplitude of rotated elements and one of whole heads ('mscale' and
// 'mscale_all_dim'): scores get the square of the latter, and the rotation what is left of the
// former. Without the latter there is the rotation's alone, which hf_rope_scaling says.
void write_mscales(const ModelShape& shape, nlohmann::ordered_json& scaling) {
  if (is_plain(score_factor(shape))) return;
  const double factor = shape.rope_scaling.factor;
  const double all =
      shortest(mscale_of(std::sqrt(score_factor(shape)), factor), shape.attention_scale,
               [&](double mscale) { return yarn_score_scale(shape.head_dim, factor, mscale); });
  const double rotation = rope_amplitude(shape.rope_scaling), heads = yarn_amplitude(factor, all);
  const double mscale = shortest(mscale_of(rotation * heads, factor), rotation,
                                 [&](double own) { return yarn_amplitude(factor, own) / heads; });
  scaling["mscale_all_dim"] = all;
  // A rotation that shrinks is one that only transformers has a word for.
  if (mscale <= 0 || mscale > kMostMscale) return;
  scaling["mscale"] = mscale;
  scaling.erase("attention_factor");
}

// The first layers are dense.
bool are_first(const std::vector<int64_t>& layers) {
  std::vector<int64_t> first(layers.size());
  std::iota(first.begin(), first.end(), 0);
  return layers == first;
}

void add_mixture_notes(const ModelShape& shape, std::vector<std::string>& notes) {
  const auto add = [&](bool obstacle, const char* note) {
    if (obstacle) notes.emplace_back(note);
  };
  const ModelShape::MoeScores& scores = shape.moe_scores;
  add(shape.shared_gate, "model.moe.shared_gate: DeepSeek's shared block has no gate");
  add(shape.shared_ffn == 0 || shape.ffn == 0 || shape.shared_ffn % shape.ffn != 0,
      "model.moe.shared_ffn: DeepSeek's is one or several times the width of an expert");
  add(!are_first(shape.dense_layers), "model.moe.dense_layers: DeepSeek's are the first ones");
  const int64_t of_group = scores.groups > 1 ? scores.best_of_group(shape.experts_per_token) : 0;
  if (is_second(shape)) {
    add(scores.normalize,
        "model.moe.normalize: DeepSeek-V2, with softmax, does not divide weights by their sum");
    add(of_group > 1,
        "model.moe.group_best: DeepSeek-V2's groups have the score of their best expert (1)");
    return;
  }
  add(!shape.expert_bias, "model.moe.score sigmoid without expert_bias: DeepSeek-V3 has both");
  add(of_group > 0 && of_group != 2,
      "model.moe.group_best: DeepSeek-V3's groups have the sum of two experts' scores (2)");
}

}  // namespace

void read_latent_heads(ConfigReader& config, ModelShape& shape) {
  // null and not there are two things: the one is without latents of queries.
  const bool plain_queries =
      config.json().contains("q_lora_rank") && config.find("q_lora_rank") == nullptr;
  shape.latent = {.kv_rank = config.size("kv_lora_rank", 512),
                  .q_rank = plain_queries ? 0 : config.size("q_lora_rank", 1536),
                  .rope_dim = config.size("qk_rope_head_dim", 64),
                  .value_dim = config.size("v_head_dim", 128),
                  .norm_eps = kLatentEps};
  const int64_t plain = config.size("qk_nope_head_dim", 128);
  shape.head_dim = plain + shape.latent.rope_dim;
  const ModelShape::Latent& latent = shape.latent;
  if (latent.kv_rank < 1 || latent.rope_dim < 1 || latent.value_dim < 1 || plain < 1) {
    config.refuse(
        fmt::format("'kv_lora_rank' is {}, 'qk_nope_head_dim' {}, 'qk_rope_head_dim' {} "
                    "and 'v_head_dim' {}, and none of them can be 0",
                    latent.kv_rank, plain, latent.rope_dim, latent.value_dim));
    // Whatever else is wrong is told as of a model with latents.
    shape.latent.kv_rank = std::max<int64_t>(latent.kv_rank, 1);
    return;
  }
  if (latent.value_dim > shape.head_dim) {
    config.refuse(fmt::format("values of {} elements ('v_head_dim') are wider than the {} of keys "
                              "('qk_nope_head_dim' + 'qk_rope_head_dim')",
                              latent.value_dim, shape.head_dim),
                  "this model cannot be run by mtl");
  }
  if (const int64_t said = config.size("qk_head_dim", shape.head_dim); said != shape.head_dim) {
    config.refuse(fmt::format("'qk_head_dim' is {}, and 'qk_nope_head_dim' + 'qk_rope_head_dim' {}",
                              said, shape.head_dim));
  }
}

void read_deepseek(ConfigReader& config, const std::string& type, ModelShape& shape) {
  const bool second = type == "deepseek_v2";
  if (shape.kv_heads != shape.heads) {
    config.refuse(
        fmt::format("'num_key_value_heads' is {}, and every one of the {} heads has its "
                    "own keys, made of latents",
                    shape.kv_heads, shape.heads));
    shape.kv_heads = shape.heads;
  }
  config.require("attention_bias", false, false, "projections to and of latents have no biases");
  config.require("use_mla", true, true, "attention of this type is over latents");
  if (second) {
    config.require("mlp_bias", false, false, "beside latents there are no biases");
  } else {
    config.require("rope_interleave", true, true,
                   "the pairs that are rotated lie beside each other in weights of this type");
  }
  const bool no_experts =
      config.json().contains("n_routed_experts") && config.find("n_routed_experts") == nullptr;
  if (no_experts || config.size("first_k_dense_replace", second ? 0 : 3) >= shape.layers) {
    // Dense, whatever its experts would be.
    for (const char* of_experts :
         {"first_k_dense_replace", "moe_intermediate_size", "moe_layer_freq", "n_group",
          "n_routed_experts", "n_shared_experts", "norm_topk_prob", "num_experts_per_tok",
          "routed_scaling_factor", "scoring_func", "topk_group", "topk_method"}) {
      config.find(of_experts);
    }
    return;
  }
  const auto only = [&](const char* key, const std::string& known) {
    const std::string said = config.text(key, known);
    if (said == known) return;
    config.refuse(fmt::format("'{}' is '{}', and models of this type have '{}'", key, said, known),
                  "this model cannot be run by mtl");
  };
  only("scoring_func", second ? "softmax" : "sigmoid");
  if (second) {
    read_deepseek_experts(
        config, shape, {.experts = 64, .ffn = 1407, .shared = 2, .scores = {.normalize = false}});
    config.require("norm_topk_prob", false, false,
                   "DeepSeek's own code divides the weights of experts by their sum then, and "
                   "leaves the scale out, and transformers does neither");
    return;
  }
  only("topk_method", "noaux_tc");
  read_deepseek_experts(config, shape,
                        {.experts = 256,
                         .chosen = 8,
                         .ffn = 2048,
                         .shared = 1,
                         .dense = 3,
                         .scores = {.sigmoid = true, .scale = 2.5, .groups = 8, .group_topk = 4}});
}

std::string latent_architecture(const ModelShape& shape) {
  return is_second(shape) ? "DeepseekV2ForCausalLM" : "DeepseekV3ForCausalLM";
}

std::vector<std::string> latent_obstacles(const ModelShape& shape) {
  std::vector<std::string> notes;
  const auto add = [&](bool obstacle, const char* setting, const char* has) {
    if (obstacle) notes.push_back(fmt::format("{}: DeepSeek{}", setting, has));
  };
  add(shape.norm != NormType::rmsnorm, "model.norm.type", "'s is rmsnorm");
  add(shape.norm_place != NormPlace::input, "model.norm.place", "'s is input");
  add(shape.activation != Activation::swiglu, "model.activation", "'s is swiglu");
  add(shape.position != PositionType::rope, "model.position.type", "'s is rope");
  add(shape.rope_scaling.type == RopeScalingType::longrope, "model.position.scaling longrope",
      " has yarn, and Phi-3 longrope");
  add(!shape.unrotated_layers.empty(), "model.position.skip", " rotates in all layers");
  add(shape.bias || shape.qkv_bias, "model.bias", " has no biases");
  add(shape.kv_heads != shape.heads, "model.kv_heads", " has as many as model.heads");
  add(shape.qk_norm, "model.qk_norm", " has norms of latents alone");
  add(shape.latent.norm_eps != kLatentEps, "model.latent.norm_eps", "'s is 1e-6");
  add(shape.parallel_residual, "model.parallel_residual", " has none");
  add(shape.sliding_window > 0, "model.sliding_window", " has none");
  add(!is_plain(score_factor(shape)) && !is_of_yarn(shape), "model.attention_scale",
      "'s is 1 / sqrt(model.head_dim), and with yarn that or more");
  add(shape.attention_cap > 0, "model.attention_cap", " has none");
  add(shape.logit_cap > 0, "model.logit_cap", " has none");
  add(shape.embedding_scale != 1, "model.embedding_scale", " has none");
  add(shape.attention_sinks, "model.attention_sinks", " has none");
  add(shape.glu_offset != 0, "model.glu_offset", " has none");
  add(shape.glu_clamp > 0, "model.glu_clamp", " has none");
  if (shape.experts > 0) add_mixture_notes(shape, notes);
  return notes;
}

void write_latents(const ModelShape& shape, nlohmann::ordered_json& config) {
  const ModelShape::Latent& latent = shape.latent;
  const bool second = is_second(shape);
  config["model_type"] = second ? "deepseek_v2" : "deepseek_v3";
  // transformers means the rotated part by it, which has a name of its own.
  config.erase("head_dim");
  config["kv_lora_rank"] = latent.kv_rank;
  config["q_lora_rank"] =
      latent.q_rank > 0 ? nlohmann::ordered_json(latent.q_rank) : nlohmann::ordered_json();
  config["qk_nope_head_dim"] = shape.head_dim - latent.rope_dim;
  config["qk_rope_head_dim"] = latent.rope_dim;
  config["v_head_dim"] = latent.value_dim;
  config["attention_bias"] = false;
  config["pad_token_id"] = nullptr;
  write_mscales(shape, config["rope_scaling"]);
  if (!second) {
    config["rope_interleave"] = true;
    config["num_nextn_predict_layers"] = 0;
  }
  if (shape.experts == 0) {
    config["first_k_dense_replace"] = shape.layers;
    return;
  }
  write_deepseek_experts(shape, config);
  config["moe_layer_freq"] = 1;
  config["scoring_func"] = second ? "softmax" : "sigmoid";
  const bool grouped = shape.moe_scores.groups > 1;
  config["topk_method"] = !second ? "noaux_tc" : grouped ? "group_limited_greedy" : "greedy";
}

std::optional<Diagnostic> unscaled_scores(const ModelShape& shape) {
  if (!shape.has_latents() || !is_second(shape) || is_plain(score_factor(shape))) return {};
  return Diagnostic{
      .code = "export.yarn",
      .what = fmt::format("transformers 4.54 to 4.57 (and later ones, but not 5.24) scale this "
                          "model's scores otherwise: they multiply by {:.6g}, and not by {:.6g} "
                          "as it and DeepSeek's own code do, since they leave out "
                          "\"mscale_all_dim\" of a DeepSeek-V2",
                          shape.attention_scale / score_factor(shape), shape.attention_scale),
      .help = "use transformers 5.24 or later, or a program that reads \"mscale_all_dim\" (vLLM)",
      .severity = Diagnostic::Severity::warning};
}

}  // namespace mtl
