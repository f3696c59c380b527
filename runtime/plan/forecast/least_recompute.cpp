#include "runtime/plan/forecast/least_recompute.h"

#include <algorithm>

#include "runtime/plan/forecast/stage_params.h"

namespace mtl {

namespace {

// A module of so many of a chunk's layers, of which there are `most`.
FirstLayers first_of_layers(int64_t layers, int64_t most) {
  if (layers >= most) return true;
  return std::max<int64_t>(layers, 0);
}

// The turns that other parts than the MLP have in parts_of_layers().
int64_t layers_before_mlp(const ModelShape& model, int64_t most) {
  return (model.has_latents() ? 3 : 2) * most;
}

// The parts of layers in the order of what they cost for the bytes that they leave free: norms and
// activations are made again at the rate of memory, but SwiGLU reads twice what it writes; heads
// are thin products of latents, where there are such, and what goes into an activation is one of
// the whole stream. The first `layers` of `most` for each of them, one after the other.
Recompute parts_of_layers(const ModelShape& model, int64_t layers, int64_t most) {
  Recompute recompute;
  recompute.norms = first_of_layers(layers, most);
  recompute.mlp_activation = first_of_layers(layers - most, most);
  if (model.has_latents()) recompute.latents = first_of_layers(layers - 2 * most, most);
  recompute.mlp = first_of_layers(layers - layers_before_mlp(model, most), most);
  if (recompute.mlp.all()) recompute.mlp_activation = false;
  return recompute;
}

Recompute whole_layers(int64_t layers, int64_t most) {
  Recompute recompute = everything_again();
  if (layers >= most) return recompute;
  recompute.full = Recompute::Full::block;
  recompute.layers = layers;
  return recompute;
}

}  // namespace

Recompute everything_again() {
  Recompute recompute;
  recompute.full = Recompute::Full::uniform;
  return recompute;
}

std::optional<Recompute> least_recompute(const Workload& work, LayoutChoice layout,
                                         const Cluster& cluster) {
  int64_t most = 0;
  for (const auto& stage : layout_chunks(work, layout)) {
    for (const ChunkRange& chunk : stage) most = std::max(most, chunk.layers);
  }
  const double room = usable_memory(cluster), nccl = nccl_memory(work.model, layout, cluster);
  const auto fits = [&](const Recompute& recompute) {
    layout.recompute = recompute;
    MemoryForecast memory = forecast_memory(work, layout);
    memory.nccl = nccl;
    return needed_memory(memory, cluster) <= room;
  };
  if (fits({})) return Recompute{};
  if (!fits(everything_again())) return std::nullopt;
  // The fewest of 1 .. end, where `end` is known to fit and more layers never need more.
  const auto fewest = [&](auto make, int64_t end) {
    int64_t too_few = 0;
    while (end - too_few > 1) {
      const int64_t middle = (too_few + end) / 2;
      (fits(make(middle, most)) ? end : too_few) = middle;
    }
    return end;
  };
  std::optional<Recompute> some;
  const auto parts = [&](int64_t layers, int64_t of) {
    return parts_of_layers(work.model, layers, of);
  };
  const int64_t before_mlp = layers_before_mlp(work.model, most);
  if (fits(parts(before_mlp + most, most))) {
    const int64_t layers = fewest(parts, before_mlp + most);
    some = parts(layers, most);
    if (layers <= before_mlp) return some;
  }
  const Recompute few = whole_layers(fewest(whole_layers, most), most);
  const auto seconds = [&](const Recompute& recompute) {
    layout.recompute = recompute;
    return forecast(work, layout, cluster).time.total;
  };
  return some && seconds(*some) <= seconds(few) ? some : few;
}

}  // namespace mtl
