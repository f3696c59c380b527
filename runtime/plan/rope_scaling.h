// How rotary frequencies are changed for contexts beyond those that a model was trained with. Pure
// data, and the frequencies that follow from it.
#pragma once

#include <cstdint>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/spec/train_spec.h"

namespace mtl {

enum class RopeScalingType {
  none,
  linear,    // all frequencies / factor: position interpolation (arXiv 2306.15595)
  llama3,    // slow frequencies / factor (Llama 3.1's apply_scaling)
  yarn,      // slow frequencies / factor, and scores that grow with it (YaRN, arXiv 2309.00071)
  longrope,  // each / a factor of its own, by the text's length (LongRoPE, arXiv 2402.13753)
};

// A frequency is slow or fast by how often it turns over the original context.
struct RopeScaling {
  RopeScalingType type = RopeScalingType::none;
  double factor = 8;
  int64_t original_max_seq = 8192;  // llama3, yarn, longrope
  // llama3: slower than the one is divided, faster than the other stays, blended by turns between.
  double low_freq_factor = 1, high_freq_factor = 4;
  // yarn: slower than beta_slow is divided, faster than beta_fast stays. Between them it is blended
  // by the number of the pair, from and to a whole number if `truncate`.
  double beta_slow = 1, beta_fast = 32;
  bool truncate = true;
  // yarn, longrope: the amplitude; 0 = 0.1 ln(factor) + 1, sqrt(1 + ln(factor) / ln(original)).
  double attention_factor = 0;
  // longrope: of each pair, in texts of up to original_max_seq tokens and in longer ones.
  std::vector<double> short_factor = {}, long_factor = {};
};

// "linear" of RopeScalingType::linear.
const char* name_of(RopeScalingType type);

// `max_seq`: of the model, for the factor of longrope.
RopeScaling rope_scaling(const TrainSpec::Model::Position::Scaling& scaling, int64_t max_seq);

// The angle per position of each pair of the `dim` elements of a head that are rotated:
// base^(-2i / dim), changed as `scaling` says. dim / 2 values. `longest`: tokens of the longest
// text.
std::vector<double> rope_frequencies(int64_t dim, double base, const RopeScaling& scaling,
                                     int64_t longest);

// What cos and sin are multiplied by. The rotation then is no rotation: it stretches queries and
// keys, and its gradient is the turn back times the same amplitude.
double rope_amplitude(const RopeScaling& scaling);

// An object with the keys of train.yaml's model.position.scaling that say something of this type.
nlohmann::json to_json(const RopeScaling& scaling);
RopeScaling rope_scaling_from_json(const nlohmann::json& json);

}  // namespace mtl
