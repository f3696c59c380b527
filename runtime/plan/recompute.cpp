#include "runtime/plan/recompute.h"

#include <algorithm>

namespace mtl {

Recompute recompute_of(const TrainSpec& spec) {
  const TrainSpec::Recompute& given = spec.recompute;
  Recompute result;
  if (given.mode == "selective") {
    auto has = [&](const char* module) {
      return std::find(given.modules.begin(), given.modules.end(), module) != given.modules.end();
    };
    result.core_attention = has("core_attn");
    result.mlp_activation = has("mlp_act");
    result.norms = has("norm");
    result.mlp = has("mlp");
  } else if (given.mode == "full") {
    const bool block = given.method == "block";
    result.full = block ? Recompute::Full::block : Recompute::Full::uniform;
    result.layers = given.layers > 0 ? given.layers : block ? spec.model.layers : 1;
    result.distribute = given.distribute;
  }
  return result;
}

std::vector<LayerGroup> layer_groups(const Recompute& recompute, const ChunkRange& chunk) {
  std::vector<LayerGroup> groups;
  int64_t layer = chunk.first_layer;
  while (layer < chunk.end_layer()) {
    LayerGroup group{.first_layer = layer};
    switch (recompute.full) {
      case Recompute::Full::none:
        break;
      case Recompute::Full::uniform:
        group.layers = std::min(recompute.layers, chunk.end_layer() - layer);
        group.again = true;
        break;
      case Recompute::Full::block:
        group.again = layer - chunk.first_layer < recompute.layers;
        break;
    }
    layer = group.end_layer();
    groups.push_back(group);
  }
  return groups;
}

int64_t layers_again(const Recompute& recompute, const ChunkRange& chunk) {
  const bool block = recompute.full == Recompute::Full::block;
  return block ? std::min(chunk.layers, recompute.layers) : chunk.layers;
}

}  // namespace mtl
