// Seconds and bytes that a layer, the embedding and the head spend on links.
#pragma once

#include <array>
#include <cstddef>

#include "runtime/plan/forecast/forecast_compute.h"

namespace mtl {

// Of one kind of parallelism, one layer and micro-batch: seconds on the critical path, and bytes
// that a rank sends. `again`: of a layer that is forwarded again; `unneeded`: how much less that is
// for each group of such layers, since backward does not need what the last of them would send.
// `leaves`: how much more backward is of a layer that leaves weights' gradients for later, of which
// `later` comes with these.
struct LinkPart {
  double forward = 0, backward = 0, again = 0, unneeded = 0;
  double leaves = 0, later = 0;
  double wire = 0, wire_again = 0, wire_unneeded = 0, wire_leaves = 0;
};
struct LayerLinks {
  LinkPart tensor, context, expert;
};
// `pass` and `parts`: of layer_work().
LayerLinks layer_links(const Workload& work, const LayoutChoice& layout, const Cluster& cluster,
                       const Software& software, const PassWork& pass, const PartsAgain& parts);
// A layer of a run, and the like of it: in FP8, or in the compute type beside; of a model with
// mixtures and dense layers either; by what it makes again.
struct LayerKind {
  PassWork work;
  LayerLinks links;
};
struct LayerKinds {
  static constexpr size_t kKinds = 8;
  static size_t of(const ModelShape& model, const LayoutChoice& layout, int64_t layer) {
    const bool dense = model.experts > 0 && !model.is_mixture(layer);
    const bool full = model.window_of(layer) != model.sliding_window;
    return (full ? 4 : 0) + (dense ? 2 : 0) + (layout.float8.holds(model, layer) ? 0 : 1);
  }
  std::array<LayerKind, kKinds> kinds;  // those that there are
};
LayerKinds layer_kinds(const Workload& work, const LayoutChoice& layout, const Cluster& cluster,
                       const Software& software, const PartsAgain& parts);

// Embedding and head: what TP sums and gathers there, forward and backward together.
struct EndsTensor {
  double time = 0, wire = 0;
};
EndsTensor ends_tensor(const Workload& work, const LayoutChoice& layout, const Cluster& cluster,
                       bool embedding, bool head);

}  // namespace mtl
