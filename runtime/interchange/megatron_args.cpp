#include "runtime/interchange/megatron_args.h"

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runtime/interchange/hf_config_reader.h"
#include "runtime/plan/layer_choice.h"

namespace mtl {

MegatronArgs::MegatronArgs(const TorchFile& file, Diagnostics& diagnostics)
    : file_(file), diagnostics_(diagnostics) {
  const Pickle& pickle = file.pickle();
  const Pickle::Value* const args = pickle.find(file.root(), "args");
  if (args != nullptr) attributes_ = file.attributes(*args);
  if (attributes_ == nullptr) {
    fail_data("import.file", file.path().string() + " has no 'args', from which the shape follows",
              "it is not a checkpoint of Megatron's training");
  }
}

const Pickle::Value* MegatronArgs::find(std::string_view key) const {
  const Pickle::Value* const value = file_.pickle().find(*attributes_, key);
  return value == nullptr || value->kind == Pickle::Kind::none ? nullptr : value;
}

int64_t MegatronArgs::size(const char* key, std::optional<int64_t> otherwise) {
  const Pickle::Value* const value = find(key);
  if (value == nullptr && otherwise) return *otherwise;
  constexpr int64_t kMost = 1 << 30;
  if (value == nullptr || value->kind != Pickle::Kind::integer || value->integer < 1 ||
      value->integer > kMost) {
    refuse(fmt::format("args.{} is {}", key, value == nullptr ? "missing" : "not a size"));
    return 1;
  }
  return value->integer;
}

double MegatronArgs::number(const char* key, double otherwise) {
  const Pickle::Value* const value = find(key);
  if (value == nullptr) return otherwise;
  if (value->kind == Pickle::Kind::integer) return static_cast<double>(value->integer);
  if (value->kind == Pickle::Kind::real) return value->number;
  refuse(fmt::format("args.{} is not a number", key));
  return otherwise;
}

bool MegatronArgs::boolean(const char* key, bool otherwise) {
  const Pickle::Value* const value = find(key);
  if (value == nullptr) return otherwise;
  if (value->kind == Pickle::Kind::boolean) return value->integer != 0;
  refuse(fmt::format("args.{} is not true or false", key));
  return otherwise;
}

std::string MegatronArgs::text(const char* key, const std::string& otherwise) {
  const Pickle::Value* const value = find(key);
  if (value == nullptr) return otherwise;
  if (value->kind == Pickle::Kind::text) return std::string(value->text);
  refuse(fmt::format("args.{} is not a name", key));
  return otherwise;
}

void MegatronArgs::require_off(const char* key, const char* why) {
  const Pickle::Value* const value = find(key);
  if (value == nullptr || (value->kind == Pickle::Kind::boolean && value->integer == 0)) return;
  refuse(fmt::format("args.{} is set: {}", key, why));
}

void MegatronArgs::refuse(const std::string& what) {
  diagnostics_.add({.code = "import.config",
                    .what = fmt::format("{}: {}", file_.path().string(), what),
                    .help = "this model cannot be run by mtl"});
}

ModelShape MegatronArgs::shape() {
  ModelShape shape;
  shape.layers = size("num_layers");
  if (shape.layers > kMostLayers) refuse(fmt::format("more than {} layers", kMostLayers));
  shape.hidden = size("hidden_size");
  shape.heads = size("num_attention_heads");
  shape.kv_heads =
      boolean("group_query_attention", false) ? size("num_query_groups", shape.heads) : shape.heads;
  if (shape.heads % shape.kv_heads != 0) refuse("heads cannot share key heads evenly");
  shape.head_dim = size("kv_channels", std::max<int64_t>(1, shape.hidden / shape.heads));
  shape.max_seq = size("max_position_embeddings", 2048);
  read_feed_forward(shape);
  read_norm(shape);
  read_positions(shape);
  // Its layer norms have a bias whatever the linear layers have.
  if (shape.norm == NormType::layernorm && !shape.has_norm_bias()) shape.norm_bias = true;
  read_windows(shape);
  if (const std::string softmax = text("softmax_type", "vanilla"); softmax != "vanilla") {
    refuse(fmt::format("args.softmax_type is {}: scores of no key are not imported from Megatron",
                       softmax));
  }
  for (const char* gate : {"glu_linear_offset", "activation_func_clamp_value"}) {
    if (number(gate, 0) == 0) continue;
    refuse(fmt::format("args.{} is {}: gates are SwiGLU's here, without offset and clamp", gate,
                       number(gate, 0)));
  }
  shape.attention_scale = number("softmax_scale", 0);
  if (!(shape.attention_scale >= 0)) refuse("args.softmax_scale is not above 0");
  shape.tie_embeddings = !boolean("untie_embeddings_and_output_weights", false);
  shape.init_std = number("init_method_std", 0.02);
  for (const auto& [key, why] : std::initializer_list<std::pair<const char*, const char*>>{
           {"num_experts", "mixtures of experts are not imported from Megatron yet"},
           {"apply_layernorm_1p", "norm weights are stored around 0"},
           {"apply_residual_connection_post_layernorm", "the residual is taken before the norm"},
           {"rotary_interleaved", "halves of a head are rotated together here"},
           {"squared_relu", "the activation is GELU or SwiGLU here"},
           {"quick_geglu", "the activation is GELU or SwiGLU here"},
           {"multi_latent_attention", "latents are not imported from Megatron yet"},
           {"attention_output_gate", "there is none here"},
           {"spec", "the layers have a specification of their own"}}) {
    require_off(key, why);
  }
  return shape;
}

void MegatronArgs::read_feed_forward(ModelShape& shape) {
  const bool swiglu = boolean("swiglu", false);
  shape.ffn = size("ffn_hidden_size", 4 * shape.hidden);
  shape.bias = shape.qkv_bias = boolean("add_bias_linear", true);
  if (boolean("add_qkv_bias", false)) shape.qkv_bias = true;
  // Megatron's fused kernel and openai_gelu are the tanh form, plain F.gelu is not.
  const bool tanh =
      boolean("openai_gelu", false) || (boolean("bias_gelu_fusion", true) && shape.bias);
  shape.activation = swiglu ? Activation::swiglu
                     : tanh ? Activation::gelu_tanh
                            : Activation::gelu_exact;
}

void MegatronArgs::read_norm(ModelShape& shape) {
  const std::string norm = text("normalization", "LayerNorm");
  if (norm != "LayerNorm" && norm != "RMSNorm") refuse("args.normalization is " + norm);
  shape.norm = norm == "RMSNorm" ? NormType::rmsnorm : NormType::layernorm;
  shape.norm_eps = number(find("norm_epsilon") ? "norm_epsilon" : "layernorm_epsilon", 1e-5);
  shape.qk_norm = boolean("qk_layernorm", false);
  if (shape.qk_norm && shape.norm != NormType::rmsnorm) {
    refuse("norms of queries and keys are RMS norms here");
  }
}

void MegatronArgs::read_positions(ModelShape& shape) {
  std::string position = text("position_embedding_type", "learned_absolute");
  if (boolean("use_rotary_position_embeddings", false)) position = "rope";
  if (position == "rope") {
    shape.position = PositionType::rope;
    read_rope(shape);
    shape.unrotated_layers = layers_of("no_rope_freq", shape.layers, 1);
    if (std::ssize(shape.unrotated_layers) == shape.layers) {
      shape.unrotated_layers.clear();
      shape.position = PositionType::none;
    }
  } else if (position == "none") {
    shape.position = PositionType::none;
  } else if (position != "learned_absolute") {
    refuse("args.position_embedding_type is " + position);
  }
}

// Positions to the left, and none to the right of a query.
void MegatronArgs::read_windows(ModelShape& shape) {
  const Pickle::Value* const window = find("window_size");
  if (window == nullptr) return;
  const Pickle& pickle = file_.pickle();
  const bool pair = window->items.size() == 2 &&
                    pickle[window->items[0]].kind == Pickle::Kind::integer &&
                    pickle[window->items[1]].kind == Pickle::Kind::integer;
  constexpr int64_t kMost = 1 << 27;
  const int64_t left = pair ? pickle[window->items[0]].integer : -1;
  if (!pair || left < 0 || left >= kMost || pickle[window->items[1]].integer != 0) {
    return refuse("args.window_size is no pair of the positions to the left and 0 to the right");
  }
  const std::vector<int64_t> full = layers_of("window_attn_skip_freq", shape.layers, 0);
  if (std::ssize(full) == shape.layers) return;
  shape.sliding_window = left + 1;
  shape.full_layers = full;
}

std::vector<int64_t> MegatronArgs::layers_of(const char* key, int64_t layers, int64_t chosen) {
  const Pickle::Value* const value = find(key);
  if (value == nullptr || layers > kMostLayers) return {};
  LayerChoice choice;
  if (value->kind == Pickle::Kind::integer && value->integer >= 1) {
    choice.every = value->integer;
    return chosen_layers(choice, layers);
  }
  const Pickle& pickle = file_.pickle();
  const bool list = value->kind == Pickle::Kind::list && std::ssize(value->items) == layers &&
                    std::all_of(value->items.begin(), value->items.end(), [&](Pickle::Id id) {
                      return pickle[id].kind == Pickle::Kind::integer;
                    });
  if (!list) {
    refuse(fmt::format("args.{} is neither a number nor a list of {}, one for each layer", key,
                       layers));
    return {};
  }
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (pickle[value->items[static_cast<size_t>(layer)]].integer == chosen) {
      choice.layers.push_back(layer);
    }
  }
  return choice.layers;
}

void MegatronArgs::read_rope(ModelShape& shape) {
  shape.rope_base = number("rotary_base", 10000);
  shape.rope_fraction = number("rotary_percent", 1);
  const int64_t rotated = shape.rotary_dim();
  if (!(shape.rope_fraction > 0 && shape.rope_fraction <= 1) || rotated < 2 || rotated % 2 != 0) {
    refuse(
        fmt::format("args.rotary_percent is {}, which makes no pairs of the {} elements of a head",
                    shape.rope_fraction, shape.head_dim));
  }
  if (boolean("use_rope_scaling", false)) {
    // Megatron has Llama 3.1's numbers in its code, and the factor as a setting.
    shape.rope_scaling.type = RopeScalingType::llama3;
    shape.rope_scaling.factor = number("rope_scaling_factor", 8);
  }
  const double divisor = number("rotary_seq_len_interpolation_factor", 1);
  if (divisor == 1) return;
  if (shape.rope_scaling.type != RopeScalingType::none || !(divisor > 1)) {
    refuse(fmt::format(
        "args.rotary_seq_len_interpolation_factor is {}, and here it is 1 or more, without "
        "use_rope_scaling",
        divisor));
  }
  shape.rope_scaling = {.type = RopeScalingType::linear, .factor = divisor};
}

}  // namespace mtl
