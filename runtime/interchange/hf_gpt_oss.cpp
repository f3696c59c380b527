#include "runtime/interchange/hf_gpt_oss.h"

#include <map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/interchange/hf_experts.h"
#include "runtime/interchange/hf_rope.h"
#include "runtime/interchange/hf_windows.h"

namespace mtl {

namespace {

// transformers has both numbers in its code, whatever 'swiglu_limit' says beside plain weights.
constexpr double kOffset = 1, kClamp = 7;

}  // namespace

void read_gpt_oss(ConfigReader& config, ModelShape& shape) {
  shape.norm = NormType::rmsnorm;
  shape.activation = Activation::quick_geglu;
  shape.glu_offset = kOffset;
  shape.attention_sinks = true;
  shape.bias = shape.qkv_bias = true;
  shape.layers = config.size("num_hidden_layers", 36);
  shape.hidden = config.size("hidden_size", 2880);
  shape.heads = config.size("num_attention_heads", 64);
  // Of these two null is not the same as missing.
  const auto otherwise = [&](const char* key, int64_t missing, int64_t null) {
    return config.size(key, config.json().contains(key) ? null : missing);
  };
  shape.kv_heads = otherwise("num_key_value_heads", 8, shape.heads);
  shape.head_dim = otherwise("head_dim", 64, 0);
  shape.ffn = config.size("intermediate_size", 2880);
  shape.max_seq = config.size("max_position_embeddings", 131'072);
  shape.norm_eps = config.number_in({0, 1, true}, "rms_norm_eps", 1e-5);
  shape.tie_embeddings = config.boolean("tie_word_embeddings", false);
  if (const std::string gate = config.text("hidden_act", "silu"); gate != "silu") {
    config.refuse(fmt::format("'hidden_act' is '{}', and models of this type have 'silu', by which "
                              "their own gate is meant",
                              gate),
                  "this model cannot be run by mtl");
  }
  config.require("attention_bias", true, true,
                 "experts have biases, and here all linear layers have one then");
  shape.glu_clamp = config.number_in({0, 1e6, true}, "swiglu_limit", kClamp);
  if (shape.glu_clamp != kClamp) {
    config.warn(fmt::format("'swiglu_limit' is {}, which is taken here, and transformers takes {} "
                            "where weights are not MXFP4",
                            shape.glu_clamp, kClamp),
                "compare a few outputs with those of the program that it was trained with");
  }
  read_mixtral_experts(config, shape, 128, 4);
  // The published files have these too, and transformers reads neither.
  for (const char* unread : {"experts_per_token", "initial_context_length"}) config.find(unread);
  read_hf_rope(config, {150'000}, shape);
  if (!config.json().contains("rope_scaling") && !config.json().contains("rope_parameters")) {
    shape.rope_scaling = {
        .type = RopeScalingType::yarn, .factor = 32, .original_max_seq = 4096, .truncate = false};
  }
  if (config.json().contains("sliding_window") && config.find("sliding_window") == nullptr) {
    config.refuse("'sliding_window' is null, and transformers needs a number");
  }
  read_hf_windows(config, {.window = 128, .full_every = 2, .by_layer = true}, shape);
}

bool is_near_gpt_oss(const ModelShape& shape) {
  return shape.attention_sinks || shape.activation == Activation::quick_geglu ||
         shape.glu_offset != 0 || shape.glu_clamp > 0 ||
         (shape.experts > 0 && shape.bias && shape.norm == NormType::rmsnorm);
}

std::vector<std::string> gpt_oss_obstacles(const ModelShape& shape) {
  std::vector<std::string> notes;
  const auto add = [&](bool obstacle, const char* setting, const char* has) {
    if (obstacle) notes.push_back(fmt::format("{}: gpt-oss{}", setting, has));
  };
  add(!shape.attention_sinks, "model.attention_sinks", " has them");
  add(shape.activation != Activation::quick_geglu, "model.activation", "'s is quick_geglu");
  add(shape.glu_offset != kOffset, "model.glu_offset", "'s is 1");
  add(shape.glu_clamp != kClamp, "model.glu_clamp", "'s is 7");
  add(!shape.bias || !shape.qkv_bias, "model.bias", " has all biases");
  add(shape.norm != NormType::rmsnorm, "model.norm.type", "'s is rmsnorm");
  add(shape.norm_place != NormPlace::input, "model.norm.place", "'s is input");
  add(shape.position != PositionType::rope, "model.position.type", "'s is rope");
  add(shape.rope_fraction != 1, "model.position.fraction", " rotates whole heads");
  add(shape.rope_scaling.type == RopeScalingType::longrope, "model.position.scaling longrope",
      " has yarn, and Phi-3 longrope");
  add(!shape.unrotated_layers.empty(), "model.position.skip", " rotates in all layers");
  add(shape.window_rope_base > 0, "model.position.window_base",
      " rotates all layers with one base");
  add(shape.qk_norm, "model.qk_norm", " has none");
  add(shape.parallel_residual, "model.parallel_residual", " has none");
  add(shape.attention_scale > 0, "model.attention_scale", "'s is 1 / sqrt(model.head_dim)");
  add(shape.attention_cap > 0, "model.attention_cap", " has none");
  add(shape.logit_cap > 0, "model.logit_cap", " has none");
  add(shape.embedding_scale != 1, "model.embedding_scale", " has none");
  if (shape.experts == 0) {
    add(true, "model.moe.experts", " is a mixture");
    return notes;
  }
  const ModelShape::MoeScores& scores = shape.moe_scores;
  add(scores.sigmoid, "model.moe.score", "'s is softmax");
  add(!scores.normalize, "model.moe.normalize", "'s is true");
  add(scores.scale != 1, "model.moe.scale", " has none");
  add(scores.groups > 1, "model.moe.groups", " has none");
  add(shape.expert_bias, "model.moe.expert_bias", " has none");
  add(shape.shared_ffn > 0, "model.moe.shared_ffn", " has none");
  add(!shape.dense_layers.empty(), "model.moe.dense_layers", " has none");
  return notes;
}

void write_gpt_oss(const ModelShape& shape, nlohmann::ordered_json& config) {
  config["model_type"] = "gpt_oss";
  config["attention_bias"] = true;
  config["num_local_experts"] = shape.experts;
  config["num_experts_per_tok"] = shape.experts_per_token;
  config["swiglu_limit"] = shape.glu_clamp;
  // Of layers that there are not, where there is no window.
  config["sliding_window"] = shape.sliding_window > 0 ? shape.sliding_window : shape.max_seq;
  config["layer_types"] = hf_layer_types(shape);
  // The family's own, where nothing is said, is a row that a small vocabulary has not.
  config["pad_token_id"] = nullptr;
}

std::vector<ForeignTensor> join_experts(std::vector<ForeignTensor> tensors, const ModelShape& shape,
                                        bool mxfp4) {
  std::vector<ForeignTensor> joined;
  std::map<std::string, size_t> known;  // which of them
  for (ForeignTensor& tensor : tensors) {
    const auto expert = expert_of(tensor.name);
    if (!expert) {
      joined.push_back(std::move(tensor));
      continue;
    }
    const bool down = expert->rest.starts_with(".down_proj.");
    const bool up = expert->rest.starts_with(".up_proj."), bias = expert->rest.ends_with(".bias");
    const std::string whole = fmt::format("{}.experts.{}{}", tensor.name.substr(0, expert->at),
                                          down ? "down_proj" : "gate_up_proj", bias ? "_bias" : "");
    const int64_t out = down ? shape.hidden : 2 * shape.ffn;
    const int64_t in = down ? shape.ffn : shape.hidden;
    const auto [place, fresh] = known.emplace(whole, joined.size());
    if (fresh) {
      Dims dims = {shape.experts, mxfp4 ? out : in, mxfp4 ? in : out};
      if (bias) dims = {shape.experts, out};
      joined.push_back({.name = whole, .shape = dims, .parts = {}, .mxfp4 = mxfp4 && !bias});
    }
    ForeignPart part = std::move(tensor.parts.front());
    part.at.assign(bias ? 2 : 3, 0);
    part.at[0] = expert->number;
    part.transposed = !mxfp4 && !bias;
    part.step = down ? 1 : 2;
    // Outputs are the last axis, but where it is inputs.
    part.at[mxfp4 && !bias ? 1 : part.at.size() - 1] = up ? 1 : 0;
    joined[place->second].parts.push_back(std::move(part));
  }
  return joined;
}

}  // namespace mtl
