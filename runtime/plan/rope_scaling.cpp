#include "runtime/plan/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>

#include <nlohmann/json.hpp>

namespace mtl {

namespace {

// In train.yaml and in checkpoints, in the order of the enum.
constexpr const char* kScalings[] = {"none", "linear", "llama3", "yarn", "longrope"};

RopeScalingType scaling_type(const std::string& name) {
  for (size_t i = 0; i < std::size(kScalings); ++i) {
    if (name == kScalings[i]) return static_cast<RopeScalingType>(i);
  }
  throw std::invalid_argument("unknown kind '" + name + "' of a scaling of rotary frequencies");
}

// Which of the pairs are divided by the factor: 0 of those before `first`, 1 of those behind
// `last`, rising between them.
struct YarnRamp {
  double first, last;
  double at(int64_t pair) const {
    return std::clamp((static_cast<double>(pair) - first) / (last - first), 0.0, 1.0);
  }
};

// As transformers has it, in its corners too: other programs read our models with it.
YarnRamp yarn_ramp(int64_t dim, double base, const RopeScaling& scaling) {
  // The pair, as a broken number, that turns `turns` times over the original context.
  const auto pair_at = [&](double turns) {
    const double wavelength = static_cast<double>(scaling.original_max_seq) / turns;
    return static_cast<double>(dim) * std::log(wavelength / (2 * std::numbers::pi)) /
           (2 * std::log(base));
  };
  YarnRamp ramp{pair_at(scaling.beta_fast), pair_at(scaling.beta_slow)};
  if (scaling.truncate) ramp = {std::floor(ramp.first), std::ceil(ramp.last)};
  ramp.first = std::max(ramp.first, 0.0);
  ramp.last = std::min(ramp.last, static_cast<double>(dim - 1));
  if (ramp.first == ramp.last) ramp.last += 0.001;
  return ramp;
}

}  // namespace

const char* name_of(RopeScalingType type) {
  return kScalings[static_cast<size_t>(type)];
}

RopeScaling rope_scaling(const TrainSpec::Model::Position::Scaling& scaling, int64_t max_seq) {
  RopeScaling result{.type = scaling_type(scaling.type),
                     .low_freq_factor = scaling.low_freq_factor,
                     .high_freq_factor = scaling.high_freq_factor,
                     .beta_slow = scaling.beta_slow,
                     .beta_fast = scaling.beta_fast,
                     .truncate = scaling.truncate,
                     .attention_factor = scaling.attention_factor,
                     .short_factor = scaling.short_factor,
                     .long_factor = scaling.long_factor};
  if (scaling.original_max_seq > 0) result.original_max_seq = scaling.original_max_seq;
  if (result.type == RopeScalingType::longrope) {
    result.factor =
        std::max(1.0, static_cast<double>(max_seq) / static_cast<double>(result.original_max_seq));
  }
  if (scaling.factor > 0) result.factor = scaling.factor;
  return result;
}

std::vector<double> rope_frequencies(int64_t dim, double base, const RopeScaling& scaling,
                                     int64_t longest) {
  std::vector<double> frequencies;
  const std::vector<double>& factors =
      longest > scaling.original_max_seq ? scaling.long_factor : scaling.short_factor;
  const bool yarn = scaling.type == RopeScalingType::yarn;
  const YarnRamp ramp = yarn ? yarn_ramp(dim, base, scaling) : YarnRamp{};
  for (int64_t i = 0; i < dim / 2; ++i) {
    const double plain = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
    if (scaling.type == RopeScalingType::longrope) {
      frequencies.push_back(plain / factors.at(static_cast<size_t>(i)));
      continue;
    }
    double divided = 0;  // the share of the frequency that is
    if (scaling.type == RopeScalingType::linear) divided = 1;
    if (scaling.type == RopeScalingType::llama3) {
      const double turns =
          static_cast<double>(scaling.original_max_seq) * plain / (2 * std::numbers::pi);
      divided = 1 - std::clamp((turns - scaling.low_freq_factor) /
                                   (scaling.high_freq_factor - scaling.low_freq_factor),
                               0.0, 1.0);
    }
    if (yarn) divided = ramp.at(i);
    frequencies.push_back(divided * plain / scaling.factor + (1 - divided) * plain);
  }
  return frequencies;
}

double rope_amplitude(const RopeScaling& scaling) {
  const bool longrope = scaling.type == RopeScalingType::longrope;
  if (scaling.type != RopeScalingType::yarn && !longrope) return 1;
  if (scaling.attention_factor > 0) return scaling.attention_factor;
  if (longrope && scaling.factor > 1) {
    const auto original = static_cast<double>(scaling.original_max_seq);
    return std::sqrt(1 + std::log(scaling.factor) / std::log(original));
  }
  if (longrope) return 1;
  return 0.1 * std::log(scaling.factor) + 1;
}

nlohmann::json to_json(const RopeScaling& scaling) {
  nlohmann::json json = {{"type", name_of(scaling.type)}};
  if (scaling.type == RopeScalingType::none) return json;
  json["factor"] = scaling.factor;
  if (scaling.type == RopeScalingType::linear) return json;
  json["original_max_seq"] = scaling.original_max_seq;
  if (scaling.type == RopeScalingType::llama3) {
    json["low_freq_factor"] = scaling.low_freq_factor;
    json["high_freq_factor"] = scaling.high_freq_factor;
    return json;
  }
  if (scaling.type == RopeScalingType::longrope) {
    json["short_factor"] = scaling.short_factor;
    json["long_factor"] = scaling.long_factor;
  } else {
    json["beta_slow"] = scaling.beta_slow;
    json["beta_fast"] = scaling.beta_fast;
    if (!scaling.truncate) json["truncate"] = false;
  }
  if (scaling.attention_factor > 0) json["attention_factor"] = scaling.attention_factor;
  return json;
}

RopeScaling rope_scaling_from_json(const nlohmann::json& json) {
  const RopeScaling other;
  return {.type = scaling_type(json.at("type").get<std::string>()),
          .factor = json.value("factor", other.factor),
          .original_max_seq = json.value("original_max_seq", other.original_max_seq),
          .low_freq_factor = json.value("low_freq_factor", other.low_freq_factor),
          .high_freq_factor = json.value("high_freq_factor", other.high_freq_factor),
          .beta_slow = json.value("beta_slow", other.beta_slow),
          .beta_fast = json.value("beta_fast", other.beta_fast),
          .truncate = json.value("truncate", other.truncate),
          .attention_factor = json.value("attention_factor", other.attention_factor),
          .short_factor = json.value("short_factor", other.short_factor),
          .long_factor = json.value("long_factor", other.long_factor)};
}

}  // namespace mtl
