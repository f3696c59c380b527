// Which layers of a config.json have a window, and which rotate queries and keys. Facts from
// transformers' configuration files, where 'layer_types' follows from other fields if it is not
// there.
#pragma once

#include <cstdint>
#include <optional>

#include <nlohmann/json_fwd.hpp>

#include "runtime/interchange/hf_config_reader.h"
#include "runtime/plan/model_shape.h"

namespace mtl {

// What transformers takes where a config does not say it.
struct HfWindows {
  std::optional<int64_t> window = {};  // of 'sliding_window'; none: there is no window
  bool switched = false;               // 'use_sliding_window' says whether there is one
  // Of 'max_window_layers': the first layers that see everything.
  std::optional<int64_t> full_below = {};
  // Of so many layers the last sees everything, 0 = none, and where a config says how many.
  const char* pattern = nullptr;
  int64_t full_every = 0;
  bool by_layer = false;      // some layers may have a window and others none
  bool of_unrotated = false;  // without 'layer_types': of the layers that do not rotate
};

// Sets sliding_window and full_layers; `shape` has its layers, and those that do not rotate.
void read_hf_windows(ConfigReader& config, const HfWindows& defaults, ModelShape& shape);
// Windows of families in which layers without one do not rotate where others have one (EXAONE 4,
// Command R7B): of every four layers the last, where a config does not say it. Whether a config
// says that there is none at all.
bool read_hf_rotating_windows(ConfigReader& config, ModelShape& shape);
// 'layer_types' of all layers.
nlohmann::ordered_json hf_layer_types(const ModelShape& shape);

// 'no_rope_layers' or 'no_rope_layer_interval', which is `every` where it is not said: sets
// unrotated_layers.
void read_hf_unrotated(ConfigReader& config, int64_t every, ModelShape& shape);
// 'no_rope_layers': for each layer 1 if it rotates.
nlohmann::ordered_json hf_rotating_layers(const ModelShape& shape);

}  // namespace mtl
