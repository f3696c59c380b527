#include "runtime/plan/saved_parts.h"

#include <algorithm>

namespace mtl {

bool replica_saves(const ParamLayout& layout, size_t param, int replicas, int replica) {
  return layout.shards > 1 || static_cast<int>(param % static_cast<size_t>(replicas)) == replica;
}

int64_t snapshot_bytes(const ParamLayout& layout, int replicas, int moments) {
  int64_t most = 0;
  for (int replica = 0; replica < replicas; ++replica) {
    int64_t bytes = 0;
    for (size_t i = 0; i < layout.params.size(); ++i) {
      if (layout.params[i].tied_copy || !replica_saves(layout, i, replicas, replica)) continue;
      const int shard = layout.shards > 1 ? replica : 0;
      const int64_t part = owned_part(layout, layout.params[i], shard).count * 4;
      bytes += (part + kSnapshotAlign - 1) / kSnapshotAlign * kSnapshotAlign * (1 + moments);
    }
    most = std::max(most, bytes);
  }
  return most;
}

}  // namespace mtl
