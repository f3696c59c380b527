#include "runtime/plan/pipeline.h"

#include <algorithm>
#include <limits>

namespace mtl {

std::vector<int64_t> balanced_layers(int64_t layers, int virtual_stages, double head) {
  const int64_t others = virtual_stages - 1;
  if (others == 0) return {layers};
  const int64_t least = layers >= virtual_stages ? 1 : 0;
  const int64_t most = std::max(least, layers - others * least);
  int64_t last = least;
  double best = std::numeric_limits<double>::infinity();
  for (int64_t candidate = least; candidate <= most; ++candidate) {
    const int64_t fullest = (layers - candidate + others - 1) / others;
    const double cost =
        std::max(static_cast<double>(fullest), static_cast<double>(candidate) + head);
    if (cost > best) continue;
    best = cost;
    last = candidate;
  }
  const int64_t rest = layers - last;
  std::vector<int64_t> counts(static_cast<size_t>(others), rest / others);
  for (int64_t i = 0; i < rest % others; ++i) ++counts[static_cast<size_t>(others - 1 - i)];
  counts.push_back(last);
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
