// Reading config.json (hf_config.h).
#include "runtime/interchange/hf_config.h"

#include <cmath>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mtl {

namespace {

// Fields that say nothing about what the model computes from given weights.
const std::set<std::string>& harmless_fields() {
  static const std::set<std::string> kFields = {"_name_or_path",
                                                "_attn_implementation",
                                                "architectures",
                                                "auto_map",
                                                "bos_token_id",
                                                "decoder_start_token_id",
                                                "do_sample",
                                                "dtype",
                                                "embd_pdrop",
                                                "attn_pdrop",
                                                "resid_pdrop",
                                                "attention_dropout",
                                                "eos_token_id",
                                                "id2label",
                                                "initializer_range",
                                                "is_decoder",
                                                "is_encoder_decoder",
                                                "keys_to_ignore_at_inference",
                                                "label2id",
                                                "max_length",
                                                "model_type",
                                                "n_ctx",
                                                "num_labels",
                                                "output_attentions",
                                                "output_hidden_states",
                                                "output_past",
                                                "output_router_logits",
                                                "pad_token_id",
                                                "prefix",
                                                "pretraining_tp",
                                                "problem_type",
                                                "reorder_and_upcast_attn",
                                                "return_dict",
                                                "router_aux_loss_coef",
                                                "router_jitter_noise",
                                                "sep_token_id",
                                                "summary_activation",
                                                "summary_first_dropout",
                                                "summary_proj_to_labels",
                                                "summary_type",
                                                "summary_use_proj",
                                                "task_specific_params",
                                                "temperature",
                                                "tokenizer_class",
                                                "top_k",
                                                "top_p",
                                                "torch_dtype",
                                                "torchscript",
                                                "transformers_version",
                                                "unk_token_id",
                                                "use_cache"};
  return kFields;
}

class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& json, std::string file, Diagnostics& diagnostics)
      : json_(json), file_(std::move(file)), diagnostics_(diagnostics) {}

  // null counts as not there.
  const nlohmann::json* find(const std::string& key) {
    seen_.insert(key);
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  int64_t size(const std::string& key, std::optional<int64_t> otherwise = std::nullopt) {
    const nlohmann::json* const value = find(key);
    if (value == nullptr) {
      if (otherwise) return *otherwise;
      refuse(fmt::format("'{}' is missing", key), "is this the config.json of the model?");
      return 1;
    }
    constexpr double kMost = 1 << 30;
    if (!value->is_number() || value->get<double>() < 0 || value->get<double>() > kMost ||
        value->get<double>() != std::floor(value->get<double>())) {
      refuse(fmt::format("'{}' is {}, not a size", key, shown(*value)), "");
      return 1;
    }
    return static_cast<int64_t>(value->get<double>());
  }
  double number(const std::string& key, double otherwise) {
    return number_of(find(key), fmt::format("'{}'", key), otherwise);
  }
  // As train.yaml takes it.
  struct Range {
    double least, most;
    bool above = false;  // `least` itself is outside
  };
  // A missing one that has no `otherwise` is refused.
  double number_in(const Range& range, const nlohmann::json* value, const std::string& name,
                   std::optional<double> otherwise) {
    if (value == nullptr && !otherwise) refuse(name + " is missing", "");
    const double read = number_of(value, name, otherwise.value_or(range.most));
    if (value == nullptr) return read;
    const bool enough = range.above ? read > range.least : read >= range.least;
    if (enough && read <= range.most) return read;
    refuse(fmt::format("{} is {}, and has to be {} {} and at most {}", name, read,
                       range.above ? "above" : "at least", range.least, range.most),
           "compare config.json with the original model's");
    return otherwise.value_or(range.most);
  }
  double number_in(const Range& range, const std::string& key, double otherwise) {
    return number_in(range, find(key), fmt::format("'{}'", key), otherwise);
  }
  bool boolean(const std::string& key, bool otherwise) {
    const nlohmann::json* const value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) {
      refuse(fmt::format("'{}' is {}, not true or false", key, shown(*value)), "");
      return otherwise;
    }
    return value->get<bool>();
  }
  std::string text(const std::string& key, const std::string& otherwise) {
    const nlohmann::json* const value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_string()) {
      refuse(fmt::format("'{}' is {}, not a name", key, shown(*value)), "");
      return otherwise;
    }
    return value->get<std::string>();
  }
  // A switch that changes the mathematics to something that we do not have.
  void require(const std::string& key, bool wanted, bool otherwise, const std::string& why) {
    if (boolean(key, otherwise) == wanted) return;
    refuse(fmt::format("'{}' is {}: {}", key, !wanted, why), "this model cannot be run by mtl");
  }
  void refuse(const std::string& what, const std::string& help) {
    diagnostics_.add({.code = "import.config", .what = file_ + ": " + what, .help = help});
  }
  void warn(const std::string& what, const std::string& help) {
    diagnostics_.add({.code = "import.config",
                      .what = file_ + ": " + what,
                      .help = help,
                      .severity = Diagnostic::Severity::warning});
  }
  // What a quantised or otherwise changed model carries, and fields that nobody here has heard of.
  void finish() {
    for (const char* key : {"quantization_config", "compression_config"}) {
      if (find(key) != nullptr) {
        refuse(fmt::format("'{}' is there: quantised weights", key),
               "import the model that it was made from");
      }
    }
    for (const auto& [key, value] : json_.items()) {
      if (seen_.contains(key) || harmless_fields().contains(key) || value.is_null()) continue;
      warn(fmt::format("'{}' is not known here and has been ignored", key),
           "compare a few outputs with the original model's");
    }
  }
  const nlohmann::json& json() const { return json_; }

 private:
  double number_of(const nlohmann::json* value, const std::string& name, double otherwise) {
    if (value == nullptr) return otherwise;
    if (!value->is_number()) {
      refuse(fmt::format("{} is {}, not a number", name, shown(*value)), "");
      return otherwise;
    }
    return value->get<double>();
  }
  static std::string shown(const nlohmann::json& value) {
    std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    if (text.size() > 60) text = text.substr(0, 57) + "...";
    return text;
  }

  const nlohmann::json& json_;
  const std::string file_;
  Diagnostics& diagnostics_;
  std::set<std::string> seen_;
};

constexpr ConfigReader::Range kEps{0, 1, true};
constexpr ConfigReader::Range kTheta{0, 1e12, true};

void read_gpt2(ConfigReader& config, ModelShape& shape) {
  shape.layers = config.size("n_layer");
  shape.hidden = config.size("n_embd");
  shape.heads = shape.kv_heads = config.size("n_head");
  shape.max_seq = config.size("n_positions", 1024);
  shape.ffn = config.size("n_inner", 4 * shape.hidden);
  shape.norm_eps = config.number_in(kEps, "layer_norm_epsilon", 1e-5);
  const std::string activation = config.text("activation_function", "gelu_new");
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh" && activation != "gelu_fast") {
    config.refuse(fmt::format("'activation_function' is '{}', and only GELU in its tanh form "
                              "(gelu_new) is there",
                              activation),
                  "this model cannot be run by mtl");
  }
  config.require("scale_attn_weights", true, true, "scores are always scaled here");
  config.require("scale_attn_by_inverse_layer_idx", false, false, "layers are alike here");
  config.require("add_cross_attention", false, false, "there is no encoder here");
  shape.tie_embeddings = config.boolean("tie_word_embeddings", true);
}

void read_rope(ConfigReader& config, ModelShape& shape, double default_theta) {
  shape.position = PositionType::rope;
  shape.rope_base = config.number_in(kTheta, "rope_theta", default_theta);
  if (config.number("partial_rotary_factor", 1) != 1) {
    config.refuse("'partial_rotary_factor' is not 1, and whole heads are rotated here",
                  "this model cannot be run by mtl");
  }
  // transformers 5 has theta and scaling in one object.
  const nlohmann::json* scaling = config.find("rope_scaling");
  if (scaling == nullptr) scaling = config.find("rope_parameters");
  if (scaling == nullptr) return;
  if (!scaling->is_object()) return config.refuse("'rope_scaling' is not an object", "");
  const auto number = [&](const ConfigReader::Range& range, const char* key,
                          std::optional<double> otherwise = std::nullopt) {
    const auto found = scaling->find(key);
    const bool there = found != scaling->end() && !found->is_null();
    return config.number_in(range, there ? &*found : nullptr,
                            fmt::format("'{}' of 'rope_scaling'", key), otherwise);
  };
  shape.rope_base = number(kTheta, "rope_theta", shape.rope_base);
  std::string type = "default";
  for (const char* key : {"rope_type", "type"}) {
    const auto found = scaling->find(key);
    if (found == scaling->end() || !found->is_string()) continue;
    type = found->get<std::string>();
    break;
  }
  if (type == "default") return;
  if (type != "llama3") {
    return config.refuse(
        fmt::format("'rope_scaling' is of type '{}', and only 'llama3' is there", type),
        "this model cannot be run by mtl");
  }
  constexpr ConfigReader::Range kTurns{0, 1e6, true};
  shape.rope_scaling = {.llama3 = true,
                        .factor = number({1, 1e6}, "factor"),
                        .low_freq_factor = number(kTurns, "low_freq_factor"),
                        .high_freq_factor = number(kTurns, "high_freq_factor"),
                        .original_max_seq = static_cast<int64_t>(
                            number({1, 1 << 27}, "original_max_position_embeddings"))};
  const RopeScaling& read = shape.rope_scaling;
  if (scaling->contains("low_freq_factor") && scaling->contains("high_freq_factor") &&
      read.low_freq_factor >= read.high_freq_factor) {
    config.refuse(fmt::format("'low_freq_factor' {} of 'rope_scaling' is not below "
                              "'high_freq_factor' {}",
                              read.low_freq_factor, read.high_freq_factor),
                  "compare config.json with the original model's");
  }
}

// The window is the same in all layers here.
void read_window(ConfigReader& config, ModelShape& shape, bool switched,
                 std::optional<int64_t> otherwise) {
  const bool on = !switched || config.boolean("use_sliding_window", false);
  const int64_t window = config.size("sliding_window", otherwise.value_or(0));
  const int64_t full_below = switched ? config.size("max_window_layers", 28) : 0;
  const nlohmann::json* const kinds = config.find("layer_types");
  bool some = full_below < shape.layers, all = full_below == 0;
  if (kinds != nullptr && kinds->is_array() && !kinds->empty()) {
    some = false;
    all = true;
    for (const nlohmann::json& kind : *kinds) {
      (kind == "sliding_attention" ? some : all) = kind == "sliding_attention";
      if (kind != "sliding_attention" && kind != "full_attention") {
        config.refuse("'layer_types' has " + kind.dump(), "this model cannot be run by mtl");
      }
    }
  }
  // Where the window is switched off, transformers gives no layer one, whatever its type.
  if (!on || !some || window == 0) return;
  if (!all) {
    return config.refuse("some layers have a sliding window and some have none",
                         "this model cannot be run by mtl");
  }
  shape.sliding_window = window;
}

struct LlamaLike {
  double norm_eps;
  double rope_theta;
};

void read_llama_like(ConfigReader& config, ModelShape& shape, const LlamaLike& defaults) {
  shape.norm = NormType::rmsnorm;
  shape.activation = Activation::swiglu;
  shape.layers = config.size("num_hidden_layers");
  shape.hidden = config.size("hidden_size");
  shape.heads = config.size("num_attention_heads");
  shape.kv_heads = config.size("num_key_value_heads", shape.heads);
  shape.head_dim = config.size("head_dim", 0);
  shape.ffn = config.size("intermediate_size");
  shape.max_seq = config.size("max_position_embeddings", 2048);
  shape.norm_eps = config.number_in(kEps, "rms_norm_eps", defaults.norm_eps);
  const std::string activation = config.text("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {
    config.refuse(fmt::format("'hidden_act' is '{}', and only 'silu' is there", activation),
                  "this model cannot be run by mtl");
  }
  shape.bias = shape.qkv_bias = false;
  shape.tie_embeddings = config.boolean("tie_word_embeddings", false);
  read_rope(config, shape, defaults.rope_theta);
}

void read_family(ConfigReader& config, const std::string& type, ModelShape& shape) {
  if (type == "gpt2") return read_gpt2(config, shape);
  if (type == "llama") {
    read_llama_like(config, shape, {1e-6, 10000});
    const bool attention = config.boolean("attention_bias", false);
    const bool mlp = config.boolean("mlp_bias", false);
    shape.bias = shape.qkv_bias = attention && mlp;
    if (attention != mlp) {
      config.refuse(
          "'attention_bias' and 'mlp_bias' differ, and here the linear layers all have "
          "a bias, or none, or Q, K and V alone",
          "this model cannot be run by mtl");
    }
  } else if (type == "mistral") {
    read_llama_like(config, shape, {1e-6, 10000});
    // Missing is not the same as null here.
    const bool given = config.json().contains("sliding_window");
    read_window(config, shape, false, given ? 0 : 4096);
  } else if (type == "qwen2") {
    read_llama_like(config, shape, {1e-6, 10000});
    shape.qkv_bias = true;
    read_window(config, shape, true, 4096);
  } else if (type == "qwen3") {
    read_llama_like(config, shape, {1e-6, 10000});
    if (shape.head_dim == 0) shape.head_dim = 128;
    shape.qk_norm = true;
    config.require("attention_bias", false, false, "norms of queries and keys come without biases");
    read_window(config, shape, true, 4096);
  } else {
    read_llama_like(config, shape, {1e-5, 1e6});
    shape.experts = config.size("num_local_experts", 8);
    shape.experts_per_token = config.size("num_experts_per_tok", 2);
    if (shape.experts_per_token < 1 || shape.experts_per_token > shape.experts) {
      config.refuse(fmt::format("'num_experts_per_tok' is {} of {} experts",
                                shape.experts_per_token, shape.experts),
                    "compare config.json with the original model's");
    } else if (shape.experts_per_token == 1) {
      config.warn(
          "'num_experts_per_tok' is 1: the model can be run here and not trained, since the "
          "one expert of a token always weighs 1 and the router cannot learn",
          "mtl generate works; mtl launch refuses its train.yaml (model.moe.topk)");
    }
    read_window(config, shape, false, 0);
  }
}

}  // namespace

HfModel model_from_hf_config(const nlohmann::json& json, const std::string& file,
                             Diagnostics& diagnostics) {
  HfModel model;
  const auto refuse_family = [&](const std::string& what) {
    diagnostics.add(
        {.code = "import.family",
         .what = file + ": " + what,
         .help = "mtl reads gpt2, llama, mistral, qwen2, qwen3 and mixtral, for causal LM"});
  };
  if (!json.is_object()) {
    refuse_family("it is not a JSON object");
    return model;
  }
  ConfigReader config(json, file, diagnostics);
  static const std::map<std::string, std::string> kArchitectures = {
      {"gpt2", "GPT2LMHeadModel"},       {"llama", "LlamaForCausalLM"},
      {"mistral", "MistralForCausalLM"}, {"qwen2", "Qwen2ForCausalLM"},
      {"qwen3", "Qwen3ForCausalLM"},     {"mixtral", "MixtralForCausalLM"}};
  const std::string type = config.text("model_type", "");
  const auto known = kArchitectures.find(type);
  if (known == kArchitectures.end()) {
    refuse_family(type.empty() ? "'model_type' is missing"
                               : fmt::format("models of type '{}' are not known here", type));
    return model;
  }
  model.architecture = known->second;
  // A base model without its head is the same weights; another head is not.
  if (const nlohmann::json* const classes = config.find("architectures")) {
    const std::string base = model.architecture.substr(0, model.architecture.find("LM"))
                                 .substr(0, model.architecture.find("For"));
    const bool fits = classes->is_array() && classes->size() == 1 && (*classes)[0].is_string() &&
                      ((*classes)[0] == model.architecture || (*classes)[0] == base + "Model");
    if (!fits) refuse_family(fmt::format("'architectures' is {}", classes->dump().substr(0, 80)));
  }
  ModelShape& shape = model.shape;
  shape.vocab = config.size("vocab_size");
  shape.init_std = config.number("initializer_range", 0.02);
  read_family(config, type, shape);
  const auto positive = [&](const char* what, int64_t value) {
    if (value >= 1) return true;
    config.refuse(fmt::format("{} is {}", what, value), "");
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
          fmt::format("{} heads cannot share {} key heads evenly", shape.heads, shape.kv_heads),
          "");
    }
    if (shape.layers > 100'000) config.refuse("more than 100000 layers", "");
    if (shape.experts > 65'536) config.refuse("more than 65536 experts", "");
    if (type == "gpt2" && shape.hidden % shape.heads != 0) {
      config.refuse(
          fmt::format("the width {} is not a multiple of {} heads", shape.hidden, shape.heads), "");
    }
  }
  config.finish();
  shape.vocab_pad_to = TrainSpec::Model().vocab_pad_to;
  shape.padded_vocab =
      (shape.vocab + shape.vocab_pad_to - 1) / shape.vocab_pad_to * shape.vocab_pad_to;
  return model;
}

}  // namespace mtl
