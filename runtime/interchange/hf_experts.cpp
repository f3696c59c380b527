#include "runtime/interchange/hf_experts.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>
#include <vector>

namespace mtl {

namespace {

void read_chosen_experts(ConfigReader& config, ModelShape& shape,
                         std::optional<int64_t> otherwise) {
  shape.experts_per_token = config.size("num_experts_per_tok", otherwise);
  if (shape.experts_per_token < 1 || shape.experts_per_token > shape.experts) {
    config.refuse(fmt::format("'num_experts_per_tok' is {} of {} experts", shape.experts_per_token,
                              shape.experts),
                  "compare config.json with the original model's");
  } else if (shape.experts_per_token == 1 && shape.moe_scores.normalize) {
    config.warn(
        "'num_experts_per_tok' is 1: the model can be run here and not trained, since the "
        "one expert of a token always weighs 1 and the router cannot learn",
        "mtl generate works; mtl launch refuses its train.yaml (model.moe.topk)");
  }
}

// Of layers some are dense, and their width is the plain one.
void set_dense_layers(ConfigReader& config, ModelShape& shape, const std::vector<int64_t>& layers,
                      int64_t ffn) {
  shape.dense_layers = layers;
  if (layers.empty()) return;
  shape.dense_layer_ffn = ffn;
  if (shape.mixtures() > 0) return;
  config.refuse("no layer has experts", "compare config.json with the original model's");
  shape.dense_layers.clear();
}

}  // namespace

std::optional<ExpertName> expert_of(std::string_view name) {
  static constexpr std::string_view kExperts = ".experts.";
  ExpertName found;
  found.at = name.find(kExperts);
  if (found.at == std::string_view::npos) return std::nullopt;
  const char* const end = name.data() + name.size();
  const char* const number = name.data() + found.at + kExperts.size();
  found.rest = std::string_view(std::from_chars(number, end, found.number).ptr, end);
  return found;
}

void read_mixtral_experts(ConfigReader& config, ModelShape& shape, int64_t experts,
                          int64_t chosen) {
  shape.experts = config.size("num_local_experts", experts);
  read_chosen_experts(config, shape, chosen);
}

void read_qwen_experts(ConfigReader& config, ModelShape& shape, int64_t experts, int64_t chosen,
                       int64_t ffn) {
  shape.experts = config.size("num_experts", experts);
  if (shape.experts < 1) {
    config.refuse(fmt::format("'num_experts' is {}", shape.experts),
                  "compare config.json with the original model's");
  }
  const int64_t of_dense = shape.ffn;
  shape.ffn = config.size("moe_intermediate_size", ffn);
  shape.moe_scores.normalize = config.boolean("norm_topk_prob", false);
  read_chosen_experts(config, shape, chosen);
  // Every so many layers the last is a mixture, unless it is named as one that is none.
  const int64_t step = std::max<int64_t>(1, config.size("decoder_sparse_step", 1));
  const nlohmann::json* const named = config.find("mlp_only_layers");
  std::vector<int64_t> dense;
  for (int64_t layer = 0; layer < std::min(shape.layers, kMostLayers); ++layer) {
    const bool is_named = named != nullptr && named->is_array() &&
                          std::find(named->begin(), named->end(), layer) != named->end();
    if (is_named || (layer + 1) % step != 0) dense.push_back(layer);
  }
  if (named != nullptr && !named->is_array()) {
    config.refuse("'mlp_only_layers' is no list", "compare config.json with the original model's");
  }
  set_dense_layers(config, shape, dense, of_dense);
}

void read_olmoe_experts(ConfigReader& config, ModelShape& shape) {
  shape.experts = config.size("num_experts", 64);
  if (shape.experts < 1) {
    config.refuse("'num_experts' is 0", "compare config.json with the original model's");
  }
  shape.moe_scores.normalize = config.boolean("norm_topk_prob", false);
  read_chosen_experts(config, shape, 8);
  if (config.find("clip_qkv") != nullptr) {
    config.refuse("'clip_qkv' is given: queries, keys and values are not clipped here",
                  "this model cannot be run by mtl");
  }
}

void read_deepseek_experts(ConfigReader& config, ModelShape& shape,
                           const DeepseekExperts& defaults) {
  const int64_t of_dense = shape.ffn;
  shape.ffn = config.size("moe_intermediate_size", defaults.ffn);
  shape.experts = config.size("n_routed_experts", defaults.experts);
  if (shape.experts < 1) {
    config.refuse("'n_routed_experts' is 0", "compare config.json with the original model's");
  }
  shape.moe_scores = defaults.scores;
  ModelShape::MoeScores& scores = shape.moe_scores;
  scores.normalize = config.boolean("norm_topk_prob", scores.normalize);
  scores.scale = config.number_in({0, 1e4, true}, "routed_scaling_factor", scores.scale);
  scores.groups = config.size("n_group", scores.groups);
  scores.group_topk = config.size("topk_group", scores.group_topk);
  shape.expert_bias = scores.sigmoid;
  read_chosen_experts(config, shape, defaults.chosen);
  const int64_t shared = config.size("n_shared_experts", defaults.shared);
  if (shared < 1) {
    config.refuse("'n_shared_experts' is 0", "compare config.json with the original model's");
  }
  shape.shared_ffn = shared * shape.ffn;
  std::vector<int64_t> dense(static_cast<size_t>(
      std::min({config.size("first_k_dense_replace", defaults.dense), shape.layers, kMostLayers})));
  std::iota(dense.begin(), dense.end(), 0);
  set_dense_layers(config, shape, dense, of_dense);
  if (const int64_t every = config.size("moe_layer_freq", 1); every != 1) {
    config.refuse(fmt::format("'moe_layer_freq' is {}, and transformers takes all layers behind "
                              "the first ones for mixtures",
                              every),
                  "this model cannot be run by mtl");
  }
  if (!scores.sigmoid) {
    const std::string method = config.text("topk_method", "greedy");
    // Groups that are said do not count then.
    if (method == "greedy") scores.groups = scores.group_topk = 1;
    if (method != "greedy" && method != "group_limited_greedy") {
      config.refuse(fmt::format("'topk_method' is '{}', and 'greedy' and 'group_limited_greedy' "
                                "are there",
                                method),
                    "this model cannot be run by mtl");
    }
  }
  const int64_t groups = scores.groups, taken = scores.group_topk;
  if (groups == 1 && taken > 0) return;
  const int64_t size = groups > 0 ? shape.experts / groups : 0;
  const bool whole = groups > 1 && groups <= 64 && shape.experts % groups == 0 && taken >= 1 &&
                     taken <= groups && shape.experts_per_token <= taken * size;
  // The sum of a group's two best experts' scores is its own, or its best one's.
  scores.group_best = scores.sigmoid ? 2 : 1;
  if (!whole || scores.group_best > size) {
    config.refuse(fmt::format("'n_group' {} and 'topk_group' {} do not fit {} of {} experts",
                              groups, taken, shape.experts_per_token, shape.experts),
                  "compare config.json with the original model's");
  }
}

void write_deepseek_experts(const ModelShape& shape, nlohmann::ordered_json& config) {
  config["n_routed_experts"] = shape.experts;
  config["num_experts_per_tok"] = shape.experts_per_token;
  config["moe_intermediate_size"] = shape.ffn;
  config["n_shared_experts"] = shape.shared_ffn / shape.ffn;
  config["norm_topk_prob"] = shape.moe_scores.normalize;
  config["routed_scaling_factor"] = shape.moe_scores.scale;
  config["n_group"] = shape.moe_scores.groups;
  config["topk_group"] = shape.moe_scores.group_topk;
  config["first_k_dense_replace"] = shape.dense_layers.size();
}

}  // namespace mtl
