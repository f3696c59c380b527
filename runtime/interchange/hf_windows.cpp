#include "runtime/interchange/hf_windows.h"

#include <algorithm>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/plan/layer_choice.h"

namespace mtl {

namespace {

constexpr const char* kWindow = "sliding_attention";
constexpr const char* kFull = "full_attention";

// The list `key`, one value for each layer, all of which `knows`; none where it is not there, or
// has been refused.
template <class Knows>
const nlohmann::json* list_by_layer(ConfigReader& config, const char* key, int64_t layers,
                                    Knows knows) {
  const nlohmann::json* const list = config.find(key);
  if (list == nullptr || (list->is_array() && list->empty())) return nullptr;
  if (!list->is_array() || std::ssize(*list) != layers) {
    config.refuse(fmt::format("'{}' is no list of {} values, one for each layer", key, layers));
    return nullptr;
  }
  const auto other = std::find_if_not(list->begin(), list->end(), knows);
  if (other == list->end()) return list;
  config.refuse(fmt::format("'{}' has {}", key, other->dump().substr(0, 60)),
                "this model cannot be run by mtl");
  return nullptr;
}

// Of `layers`, those that `is` says.
template <class Is>
std::vector<int64_t> layers_that(int64_t layers, Is is) {
  std::vector<int64_t> those;
  for (int64_t layer = 0; layer < std::min(layers, kMostLayers); ++layer) {
    if (is(layer)) those.push_back(layer);
  }
  return those;
}
// The last of every `every` of them.
std::vector<int64_t> last_of_every(int64_t every, int64_t layers) {
  return chosen_layers({.every = every}, std::min(layers, kMostLayers));
}

}  // namespace

void read_hf_windows(ConfigReader& config, const HfWindows& defaults, ModelShape& shape) {
  bool on = !defaults.switched || config.boolean("use_sliding_window", false);
  const int64_t window = config.size("sliding_window", defaults.window.value_or(0));
  const int64_t below =
      defaults.full_below ? config.size("max_window_layers", defaults.full_below) : 0;
  // A pattern beside the list that has been made of it says nothing more, and has been a word.
  const nlohmann::json* const kinds =
      list_by_layer(config, "layer_types", shape.layers,
                    [](const auto& kind) { return kind == kWindow || kind == kFull; });
  // In this family the switch says only which layers have one where there is no list.
  if (defaults.of_unrotated && kinds != nullptr) on = true;
  int64_t every = defaults.full_every;
  if (defaults.pattern != nullptr) {
    config.find(defaults.pattern);
    if (kinds == nullptr) every = config.size(defaults.pattern, every);
  }
  const bool by_pattern = kinds == nullptr && every > 0;
  const std::vector<int64_t> full =
      by_pattern ? last_of_every(every, shape.layers)
                 : layers_that(shape.layers, [&](int64_t layer) {
                     if (kinds != nullptr) return (*kinds)[static_cast<size_t>(layer)] == kFull;
                     return defaults.of_unrotated ? shape.rotates(layer) : layer < below;
                   });
  // Where the window is switched off, transformers gives no layer one, whatever its type.
  if (!on) return;
  if (window == 0 && config.find("sliding_window") != nullptr) {
    return config.refuse("'sliding_window' is 0, and a query sees itself at least",
                         "without a window it is null");
  }
  if (window == 0) return;
  if (!full.empty() && !defaults.by_layer) {
    return config.refuse("some layers have a sliding window and some have none",
                         "transformers gives all layers of this family one; this model cannot be "
                         "run by mtl");
  }
  if (std::ssize(full) == shape.layers) return;
  shape.sliding_window = window;
  shape.full_layers = full;
}

bool read_hf_rotating_windows(ConfigReader& config, ModelShape& shape) {
  const bool none = config.json().contains("sliding_window") && !config.find("sliding_window");
  read_hf_windows(config,
                  {.window = none ? 0 : 4096,
                   .pattern = "sliding_window_pattern",
                   .full_every = 4,
                   .by_layer = true},
                  shape);
  if (shape.sliding_window > 0) shape.unrotated_layers = shape.full_layers;
  return none;
}

nlohmann::ordered_json hf_layer_types(const ModelShape& shape) {
  nlohmann::ordered_json types = nlohmann::ordered_json::array();
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    types.push_back(shape.window_of(layer) > 0 ? kWindow : kFull);
  }
  return types;
}

void read_hf_unrotated(ConfigReader& config, int64_t every, ModelShape& shape) {
  const nlohmann::json* const rotates =
      list_by_layer(config, "no_rope_layers", shape.layers,
                    [](const auto& flag) { return flag == 0 || flag == 1; });
  const int64_t interval = config.size("no_rope_layer_interval", every);
  shape.unrotated_layers = rotates == nullptr
                               ? last_of_every(interval, shape.layers)
                               : layers_that(shape.layers, [&](int64_t layer) {
                                   return (*rotates)[static_cast<size_t>(layer)] == 0;
                                 });
  if (std::ssize(shape.unrotated_layers) < shape.layers) return;
  shape.unrotated_layers.clear();
  shape.position = PositionType::none;
}

nlohmann::ordered_json hf_rotating_layers(const ModelShape& shape) {
  nlohmann::ordered_json rotates = nlohmann::ordered_json::array();
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    rotates.push_back(shape.rotates(layer) ? 1 : 0);
  }
  return rotates;
}

}  // namespace mtl
