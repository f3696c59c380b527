#include "runtime/plan/weight_reads.h"

#include <ranges>

namespace mtl {

std::vector<int64_t> forward_reads(const ChunkRange& chunk, int64_t model_layers) {
  std::vector<int64_t> reads;
  if (chunk.embedding) reads.push_back(-1);
  for (int64_t layer = chunk.first_layer; layer < chunk.end_layer(); ++layer) {
    reads.push_back(layer);
  }
  if (chunk.head) reads.push_back(model_layers);
  return reads;
}

std::vector<int64_t> backward_reads(const ChunkRange& chunk, int64_t model_layers,
                                    const Recompute& recompute) {
  std::vector<int64_t> reads;
  if (chunk.head) reads.push_back(model_layers);
  const std::vector<LayerGroup> groups = layer_groups(recompute, chunk);
  for (const LayerGroup& group : groups | std::views::reverse) {
    for (int64_t layer = group.first_layer; group.again && layer < group.end_layer(); ++layer) {
      reads.push_back(layer);
    }
    for (int64_t layer = group.end_layer(); layer-- > group.first_layer;) reads.push_back(layer);
  }
  return reads;
}

LayerBuckets buckets_by_layer(const std::vector<ParamRow>& table, const ParamLayout& layout,
                              int64_t model_layers) {
  LayerBuckets buckets(static_cast<size_t>(model_layers) + 2);
  for (const ParamPlacement& param : layout.params) {
    std::vector<size_t>& of_layer = buckets[static_cast<size_t>(table[param.row].layer + 1)];
    if (of_layer.empty() || of_layer.back() != param.bucket) of_layer.push_back(param.bucket);
  }
  return buckets;
}

bool WindowContents::put(size_t bucket) {
  std::optional<size_t>& held = held_[layout_->buckets[bucket].window];
  if (held == bucket) return false;
  held = bucket;
  return true;
}

}  // namespace mtl
