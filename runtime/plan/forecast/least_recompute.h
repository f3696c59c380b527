// How little a layout has to make again to fit into memory.
#pragma once

#include <optional>

#include "runtime/plan/forecast/forecast.h"

namespace mtl {

// Everything but the inputs of layers, each by itself: no recompute needs less memory.
Recompute everything_again();

// What costs least time, by the forecast, of what makes `layout` fit, in as few layers as do:
// nothing where it fits as it is; norms, then also the activations of the MLPs, then also their
// products; or whole layers. Nothing of it where not even everything does. The layout's own
// recompute is not looked at.
std::optional<Recompute> least_recompute(const Workload& work, LayoutChoice layout,
                                         const Cluster& cluster);

}  // namespace mtl
