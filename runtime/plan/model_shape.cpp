#include "runtime/plan/model_shape.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "runtime/plan/layer_choice.h"

namespace mtl {

namespace {

// The names of the kinds in train.yaml and in checkpoints, in the order of their enums.
constexpr const char* kNorms[] = {"layernorm", "rmsnorm"};
constexpr const char* kNormPlaces[] = {"input", "output", "both"};
constexpr const char* kActivations[] = {"gelu", "swiglu", "gelu_exact", "geglu", "quick_geglu"};
constexpr const char* kPositions[] = {"learned", "rope", "alibi", "none"};

constexpr std::pair<const char*, bool ModelShape::Lora::*> kAdapted[] = {
    {"qkv", &ModelShape::Lora::qkv},
    {"proj", &ModelShape::Lora::proj},
    {"up", &ModelShape::Lora::up},
    {"down", &ModelShape::Lora::down}};

void set_adapted(ModelShape::Lora& lora, const std::vector<std::string>& targets) {
  for (const auto& [name, adapted] : kAdapted) {
    lora.*adapted = std::find(targets.begin(), targets.end(), name) != targets.end();
  }
}

template <class Enum, size_t N>
Enum kind_of(const char* const (&names)[N], const std::string& name) {
  for (size_t i = 0; i < N; ++i) {
    if (name == names[i]) return static_cast<Enum>(i);
  }
  // The schema admits no other, and a checkpoint is read by the version that wrote it or a later.
  throw std::invalid_argument("unknown kind '" + name + "' in a model's shape");
}

}  // namespace

const char* activation_name(Activation activation) {
  return kActivations[static_cast<size_t>(activation)];
}

const char* norm_place_name(NormPlace place) {
  return kNormPlaces[static_cast<size_t>(place)];
}

namespace {

bool has(const std::vector<int64_t>& layers, int64_t layer) {
  return std::binary_search(layers.begin(), layers.end(), layer);
}

int64_t count_in(const std::vector<int64_t>& layers, int64_t begin, int64_t end) {
  return std::lower_bound(layers.begin(), layers.end(), end) -
         std::lower_bound(layers.begin(), layers.end(), begin);
}

}  // namespace

bool ModelShape::is_mixture(int64_t layer) const {
  return experts > 0 && !has(dense_layers, layer);
}

int64_t ModelShape::mixtures_in(int64_t begin, int64_t end) const {
  return experts == 0 ? 0 : end - begin - count_in(dense_layers, begin, end);
}

int64_t ModelShape::window_of(int64_t layer) const {
  return has(full_layers, layer) ? 0 : sliding_window;
}

int64_t ModelShape::full_layers_in(int64_t begin, int64_t end) const {
  return count_in(full_layers, begin, end);
}

bool ModelShape::rotates(int64_t layer) const {
  return position == PositionType::rope && !has(unrotated_layers, layer);
}

ModelShape ModelShape::of_dense_layers() const {
  ModelShape dense = *this;
  if (!dense_layers.empty()) dense.ffn = dense_layer_ffn;
  dense.experts = dense.experts_per_token = dense.shared_ffn = dense.dense_layer_ffn = 0;
  dense.shared_gate = dense.expert_bias = false;
  dense.dense_layers.clear();
  dense.moe_scores = {};
  return dense;
}

bool ModelShape::Lora::adapts(const std::string& slot) const {
  if (rank == 0) return false;
  if (slot == "attn.proj") return proj;
  if (slot == "mlp.up") return up;
  if (slot == "mlp.down") return down;
  // Of latents those that make queries, keys and values of them, and these.
  return qkv && slot.starts_with("attn.");
}

ModelShape ModelShape::without_adapters() const {
  ModelShape plain = *this;
  plain.lora = {};
  return plain;
}

bool ModelShape::names_of_mixtral() const {
  return !qk_norm && !has_latents() && !bias && norm_place == NormPlace::input && !qkv_bias &&
         shared_ffn == 0 && dense_layers.empty() && !moe_scores.sigmoid && moe_scores.normalize &&
         moe_scores.scale == 1 && moe_scores.groups == 1;
}

Family ModelShape::family() const {
  const bool gpt2 = norm == NormType::layernorm && !gated() && embedding_scale == 1 &&
                    position == PositionType::learned && kv_heads == heads &&
                    heads * head_dim == hidden && !qk_norm && !has_latents() && qkv_bias == bias &&
                    sliding_window == 0 && attention_scale == 0 && attention_cap == 0 &&
                    logit_cap == 0 && !attention_sinks && experts == 0 && !parallel_residual &&
                    residual_scale == 1 && logit_scale == 1 && !head_bias &&
                    norm_place == NormPlace::input;
  return gpt2 ? Family::gpt2 : Family::llama;
}

bool ModelShape::has_norm_bias() const {
  return norm == NormType::layernorm && norm_bias.value_or(bias || family() == Family::llama);
}

namespace {

std::vector<int64_t> dense_layers(const TrainSpec::Model& model) {
  std::vector<int64_t> layers;
  const std::vector<int64_t>& given = model.moe.dense_layers;
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    if (layer % model.moe.every != 0 ||
        std::find(given.begin(), given.end(), layer) != given.end()) {
      layers.push_back(layer);
    }
  }
  return layers;
}

void set_norm_bias(ModelShape& shape, bool bias) {
  if (shape.norm == NormType::layernorm && shape.has_norm_bias() != bias) shape.norm_bias = bias;
}

}  // namespace

ModelShape model_shape(const TrainSpec& spec, int64_t vocab) {
  const TrainSpec::Model& model = spec.model;
  ModelShape shape;
  shape.layers = model.layers;
  shape.hidden = model.hidden;
  shape.heads = model.heads;
  shape.kv_heads = model.kv_heads > 0 ? model.kv_heads : model.heads;
  shape.head_dim = model.head_dim > 0 ? model.head_dim
                   : model.heads > 0  ? model.hidden / model.heads
                                      : 0;
  shape.norm = kind_of<NormType>(kNorms, model.norm.type);
  shape.norm_eps = model.norm.eps;
  shape.norm_place = kind_of<NormPlace>(kNormPlaces, model.norm.place);
  shape.activation = kind_of<Activation>(kActivations, model.activation);
  if (shape.gated()) {
    shape.glu_offset = model.glu_offset;
    shape.glu_clamp = model.glu_clamp;
  }
  // With a gate there are three matrices where GELU has two: 8/3 keeps the number of parameters.
  const int64_t ffn = shape.gated() ? round_up(8 * model.hidden / 3, 64) : 4 * model.hidden;
  shape.ffn = model.ffn > 0 ? model.ffn : ffn;
  shape.position = kind_of<PositionType>(kPositions, model.position.type);
  shape.rope_base = model.position.base;
  shape.rope_fraction = model.position.fraction;
  shape.qk_norm = model.qk_norm;
  shape.qk_norm_whole = model.qk_norm && model.qk_norm_whole;
  shape.parallel_residual = model.parallel_residual;
  shape.shared_norm = model.parallel_residual && model.norm.shared;
  shape.residual_scale = model.residual_scale;
  shape.vocab = vocab;
  shape.vocab_pad_to = model.vocab_pad_to;
  shape.padded_vocab = round_up(vocab, model.vocab_pad_to);
  shape.max_seq = model.max_seq > 0 ? model.max_seq : spec.train.seq_len;
  shape.rope_scaling = rope_scaling(model.position.scaling, shape.max_seq);
  if (shape.position == PositionType::rope) {
    shape.unrotated_layers = chosen_layers(model.position.skip, model.layers);
    if (model.sliding_window > 0) shape.window_rope_base = model.position.window_base;
  }
  if (model.latent.kv_rank > 0) {
    const int64_t plain = shape.head_dim - model.latent.rope_dim;
    shape.latent = {.kv_rank = model.latent.kv_rank,
                    .q_rank = model.latent.q_rank,
                    .rope_dim = model.latent.rope_dim,
                    .value_dim = model.latent.value_dim > 0 ? model.latent.value_dim : plain,
                    .norm_eps = model.latent.norm_eps};
  }
  shape.bias = model.bias;
  shape.qkv_bias = model.qkv_bias == "auto" ? model.bias : model.qkv_bias == "true";
  shape.sliding_window = model.sliding_window;
  if (shape.sliding_window > 0) {
    shape.full_layers = chosen_layers(model.full_attention, model.layers);
  }
  shape.attention_scale = model.attention_scale;
  shape.attention_cap = model.attention_cap;
  shape.logit_cap = model.logit_cap;
  shape.attention_sinks = model.attention_sinks;
  shape.experts = model.moe.experts;
  shape.experts_per_token = shape.experts > 0 ? model.moe.topk : 0;
  shape.moe_aux_loss = model.moe.aux_loss;
  shape.moe_z_loss = model.moe.z_loss;
  if (shape.experts > 0) {
    shape.moe_scores = {.sigmoid = model.moe.score == "sigmoid",
                        .normalize = model.moe.normalize,
                        .scale = model.moe.scale,
                        .groups = model.moe.groups,
                        .group_topk = model.moe.group_topk,
                        .group_best = model.moe.group_best};
    shape.dense_layers = dense_layers(model);
    if (!shape.dense_layers.empty()) shape.dense_layer_ffn = shape.ffn;
    if (model.moe.ffn > 0) shape.ffn = model.moe.ffn;
    shape.shared_ffn = model.moe.shared_ffn;
    shape.shared_gate = shape.shared_ffn > 0 && model.moe.shared_gate;
    shape.expert_bias = model.moe.expert_bias;
  }
  shape.tie_embeddings = model.tie_embeddings;
  shape.embedding_scale = model.embedding_scale;
  shape.logit_scale = model.logit_scale;
  shape.head_bias = model.head_bias;
  shape.dropout_hidden = model.dropout.hidden;
  shape.dropout_attention = model.dropout.attention;
  shape.init_std = spec.init.std;
  if (spec.lora.rank > 0) {
    shape.lora.rank = spec.lora.rank;
    shape.lora.alpha = spec.lora.alpha > 0 ? spec.lora.alpha : static_cast<double>(spec.lora.rank);
    set_adapted(shape.lora, spec.lora.targets);
  }
  if (model.norm.bias != "auto") set_norm_bias(shape, model.norm.bias == "true");
  return shape;
}

nlohmann::json to_json(const ModelShape& shape) {
  nlohmann::json json = {{"family", shape.family() == Family::gpt2 ? "gpt2" : "llama"},
                         {"layers", shape.layers},
                         {"hidden", shape.hidden},
                         {"heads", shape.heads},
                         {"kv_heads", shape.kv_heads},
                         {"head_dim", shape.head_dim},
                         {"ffn", shape.ffn},
                         {"vocab", shape.vocab},
                         {"vocab_pad_to", shape.vocab_pad_to},
                         {"max_seq", shape.max_seq},
                         {"norm", kNorms[static_cast<size_t>(shape.norm)]},
                         {"norm_eps", shape.norm_eps},
                         {"activation", activation_name(shape.activation)},
                         {"position", kPositions[static_cast<size_t>(shape.position)]},
                         {"qk_norm", shape.qk_norm},
                         {"bias", shape.bias},
                         {"tie_embeddings", shape.tie_embeddings}};
  // Only where they say something: what has none is read by older versions too.
  if (shape.qkv_bias != shape.bias) json["qkv_bias"] = shape.qkv_bias;
  if (shape.norm_place != NormPlace::input) json["norm_place"] = norm_place_name(shape.norm_place);
  if (shape.qk_norm_whole) json["qk_norm_whole"] = true;
  if (shape.has_latents()) {
    json["latent_kv_rank"] = shape.latent.kv_rank;
    if (shape.latent.q_rank > 0) json["latent_q_rank"] = shape.latent.q_rank;
    json["latent_rope_dim"] = shape.latent.rope_dim;
    json["latent_value_dim"] = shape.latent.value_dim;
    json["latent_norm_eps"] = shape.latent.norm_eps;
  }
  if (shape.norm_bias) json["norm_bias"] = *shape.norm_bias;
  if (shape.parallel_residual) json["parallel_residual"] = true;
  if (shape.shared_norm) json["shared_norm"] = true;
  if (shape.residual_scale != 1) json["residual_scale"] = shape.residual_scale;
  if (shape.embedding_scale != 1) json["embedding_scale"] = shape.embedding_scale;
  if (shape.logit_scale != 1) json["logit_scale"] = shape.logit_scale;
  if (shape.head_bias) json["head_bias"] = true;
  if (shape.sliding_window > 0) json["sliding_window"] = shape.sliding_window;
  if (!shape.full_layers.empty()) json["full_layers"] = shape.full_layers;
  if (shape.attention_scale > 0) json["attention_scale"] = shape.attention_scale;
  if (shape.attention_cap > 0) json["attention_cap"] = shape.attention_cap;
  if (shape.logit_cap > 0) json["logit_cap"] = shape.logit_cap;
  if (shape.attention_sinks) json["attention_sinks"] = true;
  if (shape.glu_offset != 0) json["glu_offset"] = shape.glu_offset;
  if (shape.glu_clamp > 0) json["glu_clamp"] = shape.glu_clamp;
  if (shape.experts > 0) {
    json["experts"] = shape.experts;
    json["experts_per_token"] = shape.experts_per_token;
    if (!shape.dense_layers.empty()) {
      json["dense_layers"] = shape.dense_layers;
      json["ffn"] = shape.dense_layer_ffn;
      json["expert_ffn"] = shape.ffn;
    }
    if (shape.moe_scores.scale != 1) json["moe_scale"] = shape.moe_scores.scale;
    if (shape.moe_scores.groups > 1) {
      json["moe_groups"] = shape.moe_scores.groups;
      json["moe_group_topk"] = shape.moe_scores.group_topk;
      const int64_t best = shape.moe_scores.best_of_group(shape.experts_per_token);
      const ModelShape::MoeScores usual = {.group_topk = shape.moe_scores.group_topk};
      if (best != usual.best_of_group(shape.experts_per_token)) json["moe_group_best"] = best;
    }
    if (shape.moe_scores.sigmoid) json["moe_score"] = "sigmoid";
    if (!shape.moe_scores.normalize) json["moe_normalize"] = false;
    if (shape.shared_ffn > 0) json["shared_ffn"] = shape.shared_ffn;
    if (shape.shared_gate) json["shared_gate"] = true;
    if (shape.expert_bias) json["expert_bias"] = true;
  }
  if (shape.position == PositionType::rope) {
    json["rope_base"] = shape.rope_base;
    if (shape.rope_fraction != 1) json["rope_fraction"] = shape.rope_fraction;
    if (shape.rope_scaling.type != RopeScalingType::none) {
      json["rope_scaling"] = to_json(shape.rope_scaling);
    }
    if (shape.window_rope_base > 0) json["window_rope_base"] = shape.window_rope_base;
    if (!shape.unrotated_layers.empty()) json["unrotated_layers"] = shape.unrotated_layers;
  }
  if (shape.lora) {
    json["lora_rank"] = shape.lora.rank;
    json["lora_alpha"] = shape.lora.alpha;
    std::vector<std::string> targets;
    for (const auto& [name, adapted] : kAdapted) {
      if (shape.lora.*adapted) targets.emplace_back(name);
    }
    json["lora_targets"] = targets;
  }
  return json;
}

ModelShape model_shape_from_json(const nlohmann::json& json) {
  ModelShape shape;
  json.at("layers").get_to(shape.layers);
  json.at("hidden").get_to(shape.hidden);
  json.at("heads").get_to(shape.heads);
  json.at("kv_heads").get_to(shape.kv_heads);
  json.at("head_dim").get_to(shape.head_dim);
  json.at("ffn").get_to(shape.ffn);
  json.at("vocab").get_to(shape.vocab);
  json.at("vocab_pad_to").get_to(shape.vocab_pad_to);
  json.at("max_seq").get_to(shape.max_seq);
  json.at("norm_eps").get_to(shape.norm_eps);
  json.at("bias").get_to(shape.bias);
  shape.qkv_bias = json.value("qkv_bias", shape.bias);
  shape.parallel_residual = json.value("parallel_residual", false);
  shape.shared_norm = json.value("shared_norm", false);
  shape.residual_scale = json.value("residual_scale", 1.0);
  shape.embedding_scale = json.value("embedding_scale", 1.0);
  shape.logit_scale = json.value("logit_scale", 1.0);
  shape.head_bias = json.value("head_bias", false);
  shape.sliding_window = json.value("sliding_window", int64_t{0});
  shape.full_layers = json.value("full_layers", std::vector<int64_t>());
  shape.attention_scale = json.value("attention_scale", 0.0);
  shape.attention_cap = json.value("attention_cap", 0.0);
  shape.logit_cap = json.value("logit_cap", 0.0);
  shape.attention_sinks = json.value("attention_sinks", false);
  shape.glu_offset = json.value("glu_offset", 0.0);
  shape.glu_clamp = json.value("glu_clamp", 0.0);
  shape.experts = json.value("experts", int64_t{0});
  shape.experts_per_token = json.value("experts_per_token", int64_t{0});
  shape.moe_scores.sigmoid = json.value("moe_score", "softmax") == "sigmoid";
  shape.moe_scores.normalize = json.value("moe_normalize", true);
  shape.moe_scores.scale = json.value("moe_scale", 1.0);
  shape.moe_scores.groups = json.value("moe_groups", int64_t{1});
  shape.moe_scores.group_topk = json.value("moe_group_topk", int64_t{1});
  shape.moe_scores.group_best = json.value("moe_group_best", int64_t{0});
  if (const auto dense = json.find("dense_layers"); dense != json.end()) {
    dense->get_to(shape.dense_layers);
    shape.dense_layer_ffn = shape.ffn;
    json.at("expert_ffn").get_to(shape.ffn);
  }
  shape.shared_ffn = json.value("shared_ffn", int64_t{0});
  shape.shared_gate = json.value("shared_gate", false);
  shape.expert_bias = json.value("expert_bias", false);
  json.at("tie_embeddings").get_to(shape.tie_embeddings);
  // Checkpoints of version 0.1 say only GPT-2's values, by leaving these out.
  shape.norm = kind_of<NormType>(kNorms, json.value("norm", "layernorm"));
  shape.activation = kind_of<Activation>(kActivations, json.value("activation", "gelu"));
  shape.position = kind_of<PositionType>(kPositions, json.value("position", "learned"));
  shape.norm_place = kind_of<NormPlace>(kNormPlaces, json.value("norm_place", "input"));
  shape.qk_norm = json.value("qk_norm", false);
  shape.qk_norm_whole = json.value("qk_norm_whole", false);
  if (const auto kv_rank = json.find("latent_kv_rank"); kv_rank != json.end()) {
    kv_rank->get_to(shape.latent.kv_rank);
    shape.latent.q_rank = json.value("latent_q_rank", int64_t{0});
    json.at("latent_rope_dim").get_to(shape.latent.rope_dim);
    json.at("latent_value_dim").get_to(shape.latent.value_dim);
    json.at("latent_norm_eps").get_to(shape.latent.norm_eps);
  }
  shape.rope_base = json.value("rope_base", 10000.0);
  shape.rope_fraction = json.value("rope_fraction", 1.0);
  if (const auto scaling = json.find("rope_scaling"); scaling != json.end()) {
    shape.rope_scaling = rope_scaling_from_json(*scaling);
  }
  shape.window_rope_base = json.value("window_rope_base", 0.0);
  shape.unrotated_layers = json.value("unrotated_layers", std::vector<int64_t>());
  shape.padded_vocab = round_up(shape.vocab, shape.vocab_pad_to);
  if (const auto norm_bias = json.find("norm_bias"); norm_bias != json.end()) {
    shape.norm_bias = norm_bias->get<bool>();
  }
  if (const auto rank = json.find("lora_rank"); rank != json.end()) {
    rank->get_to(shape.lora.rank);
    json.at("lora_alpha").get_to(shape.lora.alpha);
    set_adapted(shape.lora, json.at("lora_targets").get<std::vector<std::string>>());
  }
  return shape;
}

}  // namespace mtl
