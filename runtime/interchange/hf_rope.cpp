#include "runtime/interchange/hf_rope.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace mtl {

namespace {

constexpr ConfigReader::Range kThetaRange{0, 1e12, true};
constexpr ConfigReader::Range kFactorRange{1, 1e6};
constexpr ConfigReader::Range kTurnsRange{0, 1e6, true};
constexpr ConfigReader::Range kPositionsRange{1, 1 << 27};
constexpr ConfigReader::Range kFractionRange{0, 1, true};
constexpr const char* kFractionKey = "partial_rotary_factor";

// The factor of transformers 4, beside everything, or that of 5, in the dictionary, which wins.
void read_fraction(ConfigReader& config, const HfRopeDefaults& defaults, ModelShape& shape) {
  if (defaults.fraction || config.find(kFractionKey) == nullptr) {
    shape.rope_fraction = config.number_in(kFractionRange, kFractionKey, shape.rope_fraction);
  } else if (config.number(kFractionKey, 1) != 1) {
    config.refuse("'partial_rotary_factor' is not 1, and models of this type rotate whole heads",
                  "compare config.json with the original model's");
  }
}

void refuse_unordered(ConfigReader& config, const char* low_key, double low, const char* high_key,
                      double high) {
  if (low < high) return;
  config.refuse(
      fmt::format("'{}' {} of the scaling is not below '{}' {}", low_key, low, high_key, high),
      "compare config.json with the original model's");
}

void read_llama3(ConfigReader& scaling, RopeScaling& to) {
  to.low_freq_factor = scaling.number_in(kTurnsRange, "low_freq_factor");
  to.high_freq_factor = scaling.number_in(kTurnsRange, "high_freq_factor");
  to.original_max_seq =
      static_cast<int64_t>(scaling.number_in(kPositionsRange, "original_max_position_embeddings"));
  if (scaling.find("low_freq_factor") != nullptr && scaling.find("high_freq_factor") != nullptr) {
    refuse_unordered(scaling, "low_freq_factor", to.low_freq_factor, "high_freq_factor",
                     to.high_freq_factor);
  }
}

void read_yarn(ConfigReader& scaling, ModelShape& shape) {
  RopeScaling& to = shape.rope_scaling;
  to.original_max_seq = static_cast<int64_t>(
      scaling.number_in(kPositionsRange, "original_max_position_embeddings",
                        static_cast<double>(std::max<int64_t>(shape.max_seq, 1))));
  to.beta_slow = scaling.number_in(kTurnsRange, "beta_slow", to.beta_slow);
  to.beta_fast = scaling.number_in(kTurnsRange, "beta_fast", to.beta_fast);
  refuse_unordered(scaling, "beta_slow", to.beta_slow, "beta_fast", to.beta_fast);
  to.truncate = scaling.boolean("truncate", true);
  // Two ways to say the same number. DeepSeek's has an amplitude per part of a head and uses what
  // of them is left over, and counts only where both are there.
  constexpr ConfigReader::Range kScale{0, 1000};
  const double mscale = scaling.number_in(kScale, "mscale", 0);
  const double all = scaling.number_in(kScale, "mscale_all_dim", 0);
  if (mscale > 0 && all > 0) {
    to.attention_factor = yarn_amplitude(to.factor, mscale) / yarn_amplitude(to.factor, all);
  }
  // Of a DeepSeek-V2 transformers does so from 5.24 on, and DeepSeek's own code from the beginning.
  if (shape.has_latents() && all > 0) {
    shape.attention_scale = yarn_score_scale(shape.head_dim, to.factor, all);
  }
  to.attention_factor = scaling.number_in({0, 1000, true}, "attention_factor", to.attention_factor);
  if (shape.rope_base <= 1) {
    scaling.refuse("yarn needs a 'rope_theta' above 1",
                   "compare config.json with the original model's");
  }
}

// `config`: of the model, which may say the original context, as Phi-3 does; transformers 5 has it
// in the dictionary. Where either says it, the factor is the ratio of both contexts.
void read_longrope(ConfigReader& config, ConfigReader& scaling, const ModelShape& shape,
                   RopeScaling& to) {
  constexpr const char* kOriginal = "original_max_position_embeddings";
  ModelShape known = shape;  // a head_dim that is not given is filled in later
  if (known.head_dim == 0 && known.heads > 0) known.head_dim = known.hidden / known.heads;
  const int64_t pairs = known.rotary_dim() / 2;
  to.short_factor = scaling.factors("short_factor", pairs);
  to.long_factor = scaling.factors("long_factor", pairs);
  const auto max_seq = static_cast<double>(std::max<int64_t>(shape.max_seq, 1));
  const bool said = config.find(kOriginal) != nullptr || scaling.find(kOriginal) != nullptr;
  const double outside = config.number_in(kPositionsRange, kOriginal, max_seq);
  const double original = scaling.number_in(kPositionsRange, kOriginal, outside);
  to.original_max_seq = static_cast<int64_t>(original);
  const double factor = scaling.number_in({0, 1e6, true}, "factor", 1);
  to.factor = std::max(1.0, said ? max_seq / original : factor);
  to.attention_factor = scaling.number_in({0, 1000, true}, "attention_factor", 0);
}

// Of the object that transformers 5 has for layers with a window.
double read_window_theta(ConfigReader& parameters, double otherwise) {
  ConfigReader windows = parameters.section("sliding_attention");
  const std::string type = windows.text("rope_type", "default");
  if (type != "default") {
    windows.refuse(fmt::format("rotary positions of layers with a window are scaled by '{}', and "
                               "here they are not",
                               type),
                   "this model cannot be run by mtl");
  }
  const double theta = windows.number_in(kThetaRange, "rope_theta", otherwise);
  windows.finish();
  return theta;
}

}  // namespace

void read_hf_rope(ConfigReader& config, const HfRopeDefaults& defaults, ModelShape& shape) {
  shape.position = PositionType::rope;
  shape.rope_base = config.number_in(kThetaRange, "rope_theta", defaults.theta);
  shape.rope_fraction = defaults.fraction.value_or(1);
  read_fraction(config, defaults, shape);
  // transformers 5 has theta and scaling in one object, or in one for each kind of layers.
  const bool old = config.find("rope_scaling") != nullptr;
  ConfigReader parameters = config.section(old ? "rope_scaling" : "rope_parameters");
  const bool by_kind =
      defaults.window_theta && !old && parameters.find("sliding_attention") != nullptr;
  if (defaults.window_theta) {
    double theta = config.number_in(kThetaRange, "rope_local_base_freq", *defaults.window_theta);
    if (by_kind) theta = read_window_theta(parameters, theta);
    if (shape.sliding_window > 0) shape.window_rope_base = theta;
  }
  ConfigReader scaling = by_kind ? parameters.section("full_attention") : parameters;
  for (const auto& [key, value] : scaling.json().items()) {
    if (!value.is_object()) continue;
    return config.refuse(
        fmt::format("layers of the kind '{}' have rotary positions of their own", key),
        "this model cannot be run by mtl");
  }
  shape.rope_base = scaling.number_in(kThetaRange, "rope_theta", shape.rope_base);
  read_fraction(scaling, defaults, shape);
  if (old) {
    // The same again, but where somebody has put a scaling beside an object of transformers 5.
    ConfigReader other = config.section("rope_parameters");
    const auto same = [&](const char* key, double again, double first) {
      if (again == first) return true;
      config.refuse(fmt::format("'{}' is {} in 'rope_parameters' and {} beside 'rope_scaling'", key,
                                again, first),
                    "keep the one that the model was trained with");
      return false;
    };
    const double theta = other.number_in(kThetaRange, "rope_theta", shape.rope_base);
    const double fraction = other.number_in(kFractionRange, kFractionKey, shape.rope_fraction);
    if (!same("rope_theta", theta, shape.rope_base)) return;
    if (!same(kFractionKey, fraction, shape.rope_fraction)) return;
  }
  // Phi-3's first files called it so.
  const bool factors = scaling.find("short_factor") != nullptr;
  const auto known_as = [&](const std::string& name) {
    return name == "su" || (name == "yarn" && factors) ? std::string("longrope") : name;
  };
  const std::string older = known_as(scaling.text("type", "default"));
  const std::string type = known_as(scaling.text("rope_type", older));
  if (scaling.find("type") != nullptr && type != older) {
    config.refuse(
        fmt::format("the rotation's 'rope_type' is '{}' and its 'type' '{}'", type, older),
        "keep the one that the model was trained with");
    return;
  }
  RopeScaling& to = shape.rope_scaling;
  if (type == "linear" || type == "llama3" || type == "yarn") {
    to.factor = scaling.number_in(kFactorRange, "factor");
  }
  if (type == "linear") {
    to.type = RopeScalingType::linear;
  } else if (type == "llama3") {
    to.type = RopeScalingType::llama3;
    read_llama3(scaling, to);
  } else if (type == "yarn") {
    to.type = RopeScalingType::yarn;
    read_yarn(scaling, shape);
  } else if (type == "dynamic") {
    return config.refuse(
        "rotary positions are scaled by 'dynamic': the frequencies follow the length of each text",
        "without the scaling it is the model that was trained: remove it, for texts of "
        "'max_position_embeddings' tokens and fewer");
  } else if (type == "longrope") {
    to.type = RopeScalingType::longrope;
    read_longrope(config, scaling, shape, to);
  } else if (type != "default") {
    return config.refuse(
        fmt::format("rotary positions are scaled by '{}', and default, linear, llama3, yarn "
                    "and longrope are there",
                    type),
        "this model cannot be run by mtl");
  }
  scaling.finish();
}

double yarn_amplitude(double factor, double mscale) {
  return 0.1 * mscale * std::log(factor) + 1;
}

double yarn_score_scale(int64_t head_dim, double factor, double mscale_all_dim) {
  const double amplitude = yarn_amplitude(factor, mscale_all_dim);
  return amplitude * amplitude / std::sqrt(static_cast<double>(head_dim));
}

nlohmann::ordered_json hf_rope_scaling(const RopeScaling& scaling) {
  if (scaling.type == RopeScalingType::none) return nullptr;
  if (scaling.type == RopeScalingType::longrope) {
    // Phi-3 before transformers 5 takes these three keys and no others.
    return {{"type", name_of(scaling.type)},
            {"short_factor", scaling.short_factor},
            {"long_factor", scaling.long_factor}};
  }
  nlohmann::ordered_json json = {{"rope_type", name_of(scaling.type)}, {"factor", scaling.factor}};
  if (scaling.type == RopeScalingType::linear) return json;
  if (scaling.type == RopeScalingType::llama3) {
    json["low_freq_factor"] = scaling.low_freq_factor;
    json["high_freq_factor"] = scaling.high_freq_factor;
    json["original_max_position_embeddings"] = scaling.original_max_seq;
    return json;
  }
  json["original_max_position_embeddings"] = scaling.original_max_seq;
  json["beta_fast"] = scaling.beta_fast;
  json["beta_slow"] = scaling.beta_slow;
  if (!scaling.truncate) json["truncate"] = false;
  if (scaling.attention_factor > 0) json["attention_factor"] = scaling.attention_factor;
  return json;
}

std::optional<Diagnostic> older_rotation(const ModelShape& shape,
                                         const std::filesystem::path& folder) {
  const RopeScaling& scaling = shape.rope_scaling;
  if (shape.position != PositionType::rope || scaling.type != RopeScalingType::yarn) return {};
  const double covered = scaling.factor * static_cast<double>(scaling.original_max_seq);
  if (covered == static_cast<double>(shape.max_seq)) return {};
  return Diagnostic{
      .code = "export.yarn",
      .what = fmt::format(
          "transformers 4.51 to 4.55 rotate this model otherwise: they scale by "
          "max_position_embeddings over the original context, {} / {} = {:.6g}, "
          "and not by the factor {:.6g}",
          shape.max_seq, scaling.original_max_seq,
          static_cast<double>(shape.max_seq) / static_cast<double>(scaling.original_max_seq),
          scaling.factor),
      .help =
          fmt::format("use transformers 4.57 or later, or set \"max_position_embeddings\" in {} "
                      "to {:.0f}",
                      (folder / "config.json").string(), covered),
      .severity = Diagnostic::Severity::warning};
}

}  // namespace mtl
