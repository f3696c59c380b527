#include "runtime/plan/pipeline.h"

#include <algorithm>

namespace mtl {

std::vector<int64_t> balanced_layers(int64_t layers, int virtual_stages) {
  const auto stages = static_cast<int64_t>(virtual_stages);
  if (stages == 1) return {layers};
  // Embedding and head are items of the first and the last virtual stage.
  const int64_t items = layers + 2;
  std::vector<int64_t> counts(static_cast<size_t>(stages), items / stages);
  // What is left over goes to the middle, from the back: there it delays nobody's first backward.
  for (int64_t i = 0; i < items % stages; ++i) ++counts[static_cast<size_t>(stages - 1 - i)];
  --counts.front();
  --counts.back();
  // An end that holds nothing but the embedding or the head takes a layer from the fullest.
  for (int64_t* end : {&counts.front(), &counts.back()}) {
    auto fullest = std::max_element(counts.begin(), counts.end());
    if (*end == 0 && *fullest > 1) {
      ++*end;
      --*fullest;
    }
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
