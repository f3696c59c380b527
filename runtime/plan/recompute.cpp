#include "runtime/plan/recompute.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace mtl {

namespace {

// As recompute.modules calls them.
constexpr std::pair<const char*, FirstLayers Recompute::*> kRecomputeModules[] = {
    {"norm", &Recompute::norms},
    {"mlp_act", &Recompute::mlp_activation},
    {"latent_up", &Recompute::latents},
    {"mlp", &Recompute::mlp},
    {"core_attn", &Recompute::core_attention}};

}  // namespace

Recompute recompute_of(const TrainSpec& spec) {
  const TrainSpec::Recompute& given = spec.recompute;
  Recompute result;
  if (given.mode == "selective") {
    const auto layers = [&](const char* module) -> FirstLayers {
      const auto& modules = given.modules;
      if (std::find(modules.begin(), modules.end(), module) == modules.end()) return false;
      const auto limit = given.module_layers.find(module);
      if (limit == given.module_layers.end()) return true;
      return limit->second;
    };
    for (const auto& [module, part] : kRecomputeModules) result.*part = layers(module);
  } else if (given.mode == "full") {
    const bool block = given.method == "block";
    result.full = block ? Recompute::Full::block : Recompute::Full::uniform;
    result.layers = given.layers > 0 ? given.layers : block ? spec.model.layers : 1;
    result.distribute = given.distribute;
  }
  return result;
}

std::string modules_of(const Recompute& recompute) {
  std::vector<std::string> modules;
  for (const auto& [module, part] : kRecomputeModules) {
    const FirstLayers& layers = recompute.*part;
    if (!layers) continue;
    modules.push_back(layers.all() ? module : fmt::format("{}: {}", module, layers.count()));
  }
  return fmt::format("[{}]", fmt::join(modules, ", "));
}

PartsAgain parts_again(const Recompute& recompute, int64_t place) {
  return {.core_attention = place < recompute.core_attention.count(),
          .mlp_activation = place < recompute.mlp_activation.count(),
          .norms = place < recompute.norms.count(),
          .latents = place < recompute.latents.count(),
          .mlp = place < recompute.mlp.count()};
}

std::vector<PartsAgain> different_parts(const Recompute& recompute) {
  // They change behind the last layer of each.
  std::vector<int64_t> places = {0};
  for (const auto& [module, part] : kRecomputeModules) {
    const FirstLayers& layers = recompute.*part;
    if (layers && !layers.all()) places.push_back(layers.count());
  }
  std::sort(places.begin(), places.end());
  std::vector<PartsAgain> different;
  for (const int64_t place : places) {
    const PartsAgain parts = parts_again(recompute, place);
    if (different.empty() || different.back() != parts) different.push_back(parts);
  }
  return different;
}

std::vector<LayerGroup> layer_groups(const Recompute& recompute, const ChunkRange& chunk) {
  std::vector<LayerGroup> groups;
  int64_t layer = chunk.first_layer;
  while (layer < chunk.end_layer()) {
    LayerGroup group{.first_layer = layer};
    switch (recompute.full) {
      case Recompute::Full::none:
        group.parts = parts_again(recompute, layer - chunk.first_layer);
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
