// Rotary positions in config.json <-> ours. Facts from transformers' modeling_rope_utils.py, where
// a dictionary of a config says how the frequencies are scaled.
#pragma once

#include <filesystem>
#include <optional>

#include <nlohmann/json_fwd.hpp>

#include "common/error.h"
#include "runtime/interchange/hf_config_reader.h"
#include "runtime/plan/model_shape.h"

namespace mtl {

// What transformers takes where a config does not say it.
struct HfRopeDefaults {
  double theta;
  // Of 'partial_rotary_factor'; none: the family rotates whole heads, and another factor is
  // refused.
  std::optional<double> fraction = std::nullopt;
  // Of 'rope_local_base_freq', the theta of layers with a window, which are not scaled; none: the
  // family has no such field.
  std::optional<double> window_theta = std::nullopt;
};

// Sets position, base, fraction, scaling and the base of windows, and with latents the scale of
// scores; `shape` has its other numbers. Problems go to the reader's diagnostics.
void read_hf_rope(ConfigReader& config, const HfRopeDefaults& defaults, ModelShape& shape);

// What YaRN's authors multiply cos and sin by, with DeepSeek's own scale of the logarithm; and what
// DeepSeek multiplies all scores by then, with the scale of whole heads ('mscale_all_dim').
double yarn_amplitude(double factor, double mscale);
double yarn_score_scale(int64_t head_dim, double factor, double mscale_all_dim);

// 'rope_scaling' as transformers 4 has it and 5 reads it; null where nothing is scaled.
nlohmann::ordered_json hf_rope_scaling(const RopeScaling& scaling);

// Versions of transformers that do not read the factor of YaRN rotate by another one, where the
// model's positions are not as many as it says: a warning (export.yarn) of an export to `folder`.
std::optional<Diagnostic> older_rotation(const ModelShape& shape,
                                         const std::filesystem::path& folder);

}  // namespace mtl
