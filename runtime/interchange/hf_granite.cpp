#include "runtime/interchange/hf_granite.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/interchange/hf_experts.h"
#include "runtime/interchange/hf_llama.h"

namespace mtl {

namespace {

bool has_multipliers(const ModelShape& shape) {
  return shape.residual_scale != 1 || shape.logit_scale != 1 || shape.attention_scale > 0 ||
         (shape.embedding_scale != 1 && shape.activation == Activation::swiglu);
}

void read_hybrid(ConfigReader& config, ModelShape& shape) {
  const nlohmann::json* const layers = config.find("layer_types");
  const bool attention = layers != nullptr && layers->is_array() &&
                         std::ssize(*layers) == shape.layers &&
                         std::all_of(layers->begin(), layers->end(),
                                     [](const auto& kind) { return kind == "attention"; });
  if (!attention) {
    config.refuse(
        "'layer_types' does not say 'attention' of every layer, and layers of Mamba are "
        "not here",
        "this model cannot be run by mtl");
  }
  if (config.text("position_embedding_type", "nope") == "nope") shape.position = PositionType::none;
  shape.experts = config.size("num_local_experts", 8);
  const int64_t shared = config.size("shared_intermediate_size", 1024);
  if (shape.experts > 0) {
    read_mixtral_experts(config, shape, 8, 2);
    shape.shared_ffn = shared;
  } else {
    config.find("num_experts_per_tok");
    shape.ffn = shared;
  }
  // Of layers that there are not; and what the published files say and transformers does not read.
  for (const char* unread : {"mamba_n_heads", "mamba_n_groups", "mamba_d_state", "mamba_d_head",
                             "mamba_d_conv", "mamba_expand", "mamba_chunk_size", "mamba_conv_bias",
                             "mamba_proj_bias", "init_method", "normalization_function"}) {
    config.find(unread);
  }
}

// Beside experts, without a score of its own.
bool has_shared_block(const ModelShape& shape) {
  return shape.shared_ffn > 0 && !shape.shared_gate;
}

}  // namespace

void read_granite(ConfigReader& config, const std::string& type, ModelShape& shape) {
  read_llama_like(config, shape, {1e-6, {10000}});
  const ConfigReader::Range positive{0, 1e4, true};
  shape.embedding_scale = config.number_in({0, 1e6, true}, "embedding_multiplier", 1);
  shape.residual_scale = config.number_in(positive, "residual_multiplier", 1);
  shape.logit_scale = 1 / config.number_in({1e-4, 1e6, false}, "logits_scaling", 1);
  shape.attention_scale = config.number_in(positive, "attention_multiplier", 1);
  const int64_t head_dim =
      shape.head_dim > 0 ? shape.head_dim : shape.hidden / std::max<int64_t>(1, shape.heads);
  const double usual = 1 / std::sqrt(static_cast<double>(head_dim));
  if (std::abs(shape.attention_scale - usual) < 1e-9 * usual) shape.attention_scale = 0;
  if (type == "granite") return read_biases(config, shape);
  config.require("attention_bias", false, false,
                 "experts have no biases, and here all linear layers have one or none");
  const bool hybrid = type == "granitemoehybrid";
  if (const std::string positions = config.text("position_embedding_type", "rope");
      positions != "rope" && !(hybrid && positions == "nope")) {
    config.refuse(
        fmt::format("'position_embedding_type' is '{}', and only 'rope' is there", positions),
        "this model cannot be run by mtl");
  }
  if (hybrid) return read_hybrid(config, shape);
  read_mixtral_experts(config, shape, 8, 2);
  if (type == "granitemoeshared") shape.shared_ffn = config.size("shared_intermediate_size", 0);
}

bool is_near_granite(const ModelShape& shape) {
  const bool llama = shape.norm == NormType::rmsnorm && shape.activation == Activation::swiglu &&
                     !shape.norms_outputs() && !shape.qk_norm && !shape.parallel_residual;
  const bool mixture = shape.experts > 0 && has_shared_block(shape) && !shape.moe_scores.sigmoid;
  return llama && (has_multipliers(shape) || mixture);
}

std::string granite_architecture(const ModelShape& shape) {
  if (shape.experts == 0) return "GraniteForCausalLM";
  return shape.shared_ffn > 0 ? "GraniteMoeSharedForCausalLM" : "GraniteMoeForCausalLM";
}

std::vector<std::string> granite_obstacles(const ModelShape& shape) {
  std::vector<std::string> notes;
  const auto add = [&](bool obstacle, const char* setting, const char* has) {
    if (obstacle) notes.push_back(fmt::format("{}: Granite{}", setting, has));
  };
  add(shape.position != PositionType::rope, "model.position.type", "'s is rope");
  add(shape.rope_fraction != 1, "model.position.fraction", " rotates whole heads");
  add(shape.rope_scaling.type == RopeScalingType::longrope, "model.position.scaling longrope",
      " has none, and Phi-3 does");
  add(!shape.unrotated_layers.empty(), "model.position.skip", " rotates in all layers");
  add(shape.sliding_window > 0, "model.sliding_window", " has none");
  add(shape.bias != shape.qkv_bias, "model.qkv_bias", " has all biases or none");
  add(shape.attention_cap > 0, "model.attention_cap", " has none");
  add(shape.logit_cap > 0, "model.logit_cap", " has none");
  if (shape.experts == 0) return notes;
  const ModelShape::MoeScores& scores = shape.moe_scores;
  add(shape.bias, "model.bias", "'s mixtures have none");
  add(scores.sigmoid, "model.moe.score", "'s is softmax");
  add(!scores.normalize, "model.moe.normalize", "'s is true");
  add(scores.scale != 1, "model.moe.scale", " has none");
  add(scores.groups > 1, "model.moe.groups", " has none");
  add(shape.expert_bias, "model.moe.expert_bias", " has none");
  add(shape.shared_gate, "model.moe.shared_gate", " has none");
  add(!shape.dense_layers.empty(), "model.moe.dense_layers", " has none");
  return notes;
}

void write_granite(const ModelShape& shape, nlohmann::ordered_json& config) {
  config["model_type"] = "granite";
  config["attention_bias"] = shape.bias;
  config["mlp_bias"] = shape.bias;
  config["embedding_multiplier"] = shape.embedding_scale;
  config["residual_multiplier"] = shape.residual_scale;
  config["logits_scaling"] = 1 / shape.logit_scale;
  config["attention_multiplier"] = shape.attention_scale > 0
                                       ? shape.attention_scale
                                       : 1 / std::sqrt(static_cast<double>(shape.head_dim));
  if (shape.experts == 0) return;
  config["model_type"] = shape.shared_ffn > 0 ? "granitemoeshared" : "granitemoe";
  config.erase("mlp_bias");
  config["num_local_experts"] = shape.experts;
  config["num_experts_per_tok"] = shape.experts_per_token;
  if (shape.shared_ffn > 0) config["shared_intermediate_size"] = shape.shared_ffn;
}

std::vector<ForeignTensor> granite_tensors(std::vector<ForeignTensor> tensors,
                                           const ModelShape& shape) {
  std::vector<ForeignTensor> joined;
  std::map<std::string, size_t> known;  // which of them
  // Puts `part` of `ours` into the tensor of `name`.
  const auto put = [&](const std::string& name, Dims dims, ForeignPart part, Dims at) {
    const auto [place, fresh] = known.emplace(name, joined.size());
    if (fresh) joined.push_back({.name = name, .shape = std::move(dims), .parts = {}});
    part.at = std::move(at);
    joined[place->second].parts.push_back(std::move(part));
  };
  for (ForeignTensor& tensor : tensors) {
    const size_t layer = tensor.name.find(".block_sparse_moe.");
    const size_t block = layer == std::string::npos ? tensor.name.find(".mlp.") : layer;
    if (block == std::string::npos) {
      joined.push_back(std::move(tensor));
      continue;
    }
    const std::string base = tensor.name.substr(0, block);
    const std::string moe = base + ".block_sparse_moe.", shared = base + ".shared_mlp.";
    const auto has = [&](const char* word) { return tensor.name.find(word) != std::string::npos; };
    // Names as Mixtral has them, or as those with a block for all tokens (shard_table.h).
    const bool up = has(".up_proj.") || has(".w3."), down = has(".down_proj.") || has(".w2.");
    const char* const linear = down ? "output_linear.weight" : "input_linear.weight";
    ForeignPart part = std::move(tensor.parts.front());
    if (const auto expert = expert_of(tensor.name)) {
      Dims dims = {shape.experts, 2 * shape.ffn, shape.hidden};
      if (down) dims = {shape.experts, shape.hidden, shape.ffn};
      put(moe + linear, std::move(dims), std::move(part), {expert->number, up ? shape.ffn : 0, 0});
    } else if (has(".shared_experts.") || shape.experts == 0) {
      const int64_t ffn = shape.dense_ffn();
      Dims dims = {2 * ffn, shape.hidden};
      if (down) dims = {shape.hidden, ffn};
      put(shared + linear, std::move(dims), std::move(part), {up ? ffn : 0, 0});
    } else {
      put(moe + "router.layer.weight", tensor.shape, std::move(part), {0, 0});
    }
  }
  return joined;
}

}  // namespace mtl
