#include "runtime/plan/layer_choice.h"

namespace mtl {

std::vector<int64_t> chosen_layers(const LayerChoice& choice, int64_t layers) {
  std::vector<bool> is_chosen(static_cast<size_t>(layers));
  for (int64_t end = choice.every; choice.every > 0 && end <= layers; end += choice.every) {
    is_chosen[static_cast<size_t>(end - 1)] = true;
  }
  for (const int64_t layer : choice.layers) {
    if (layer < layers) is_chosen[static_cast<size_t>(layer)] = true;
  }
  std::vector<int64_t> chosen;
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (is_chosen[static_cast<size_t>(layer)]) chosen.push_back(layer);
  }
  return chosen;
}

}  // namespace mtl
