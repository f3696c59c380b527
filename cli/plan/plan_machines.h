// The machines that a plan is for: --gpu-type, --gpus, --nodes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/dtype.h"
#include "runtime/plan/forecast/cluster.h"

namespace mtl {

struct MachinesGiven {
  std::string gpu_type;  // empty = not given
  std::optional<int64_t> gpus, nodes;
  bool any() const { return !gpu_type.empty() || gpus || nodes; }
};

// Ranks, if the options say how many: nodes x GPUs of a node where --gpus does not. Throws Error
// usage.value for a type that is not known (all are named), or for more than 2^20 ranks,
// usage.option for GPUs that nodes do not divide, and for nodes of CPUs.
std::optional<int> ranks_given(const MachinesGiven& given);

// h100-80g unless said otherwise. `cpu`: this machine's memory, and its rates, measured for about
// half a second; shared by `ranks`.
Cluster machines_given(const MachinesGiven& given, DType compute, int ranks);

}  // namespace mtl
