// The order in which a pass reads the weights of the layers, and what of them is whole where they
// are kept in shards (ZeRO-3): what is gathered when, and the traffic, follow from it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/plan/param_layout.h"
#include "runtime/plan/recompute.h"

namespace mtl {

// -1 = embedding, model_layers = final norm and head. The backward of an embedding reads none.
std::vector<int64_t> forward_reads(const ChunkRange& chunk, int64_t model_layers);
std::vector<int64_t> backward_reads(const ChunkRange& chunk, int64_t model_layers,
                                    const Recompute& recompute);

// Of a layout whose buckets are whole layers: those of layer -1, 0, ..., model_layers. There is one
// of all but experts, where ranks divide these, and one of its experts.
using LayerBuckets = std::vector<std::vector<size_t>>;
LayerBuckets buckets_by_layer(const std::vector<ParamRow>& table, const ParamLayout& layout,
                              int64_t model_layers);

// Which bucket each window holds.
class WindowContents {
 public:
  explicit WindowContents(const ParamLayout& layout)
      : layout_(&layout), held_(layout.windows.size()) {}
  // Whether the bucket's window held another one; it now is the bucket's.
  bool put(size_t bucket);
  void clear() { held_.assign(held_.size(), std::nullopt); }

 private:
  const ParamLayout* layout_;
  std::vector<std::optional<size_t>> held_;
};

}  // namespace mtl
