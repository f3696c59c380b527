#include "runtime/plan/pipeline.h"

#include <cstddef>

namespace mtl {

std::vector<int64_t> balanced_layers(int64_t layers, int virtual_stages, double head) {
  const auto stages = static_cast<size_t>(virtual_stages);
  std::vector<int64_t> counts(stages, 0);
  const auto cost = [&](size_t stage) {
    return static_cast<double>(counts[stage]) + (stage == stages - 1 ? head : 0);
  };
  // Every layer goes where there is none yet, then to the cheapest; the last of those alike, for
  // the first stages keep the activations of the most micro-batches.
  for (int64_t layer = 0; layer < layers; ++layer) {
    size_t best = 0;
    for (size_t stage = 1; stage < stages; ++stage) {
      const bool better = (counts[stage] > 0) != (counts[best] > 0) ? counts[stage] == 0
                                                                    : cost(stage) <= cost(best);
      if (better) best = stage;
    }
    ++counts[best];
  }
  return counts;
}

std::vector<std::vector<ChunkRange>> pipeline_layout(const std::vector<int64_t>& layers_of_virtual,
                                                     int stages, int chunks) {
  std::vector<std::vector<ChunkRange>> layout(static_cast<size_t>(stages));
  int64_t first = 0;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    for (int stage = 0; stage < stages; ++stage) {
      const int global = chunk * stages + stage;
      ChunkRange range;
      range.first_layer = first;
      range.layers = layers_of_virtual[static_cast<size_t>(global)];
      range.embedding = global == 0;
      range.head = global == stages * chunks - 1;
      first += range.layers;
      layout[static_cast<size_t>(stage)].push_back(range);
    }
  }
  return layout;
}

}  // namespace mtl
