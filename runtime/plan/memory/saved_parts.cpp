#include "runtime/plan/memory/saved_parts.h"

#include <algorithm>

#include "runtime/plan/matrices.h"

namespace mtl {

bool rank_saves(const ParamLayout& layout, size_t param, const Holders& holders) {
  const Bucket& bucket = layout.buckets[layout.params[param].bucket];
  // Of a shard there are copies; of what is not divided all have one.
  const int ranks = bucket.experts ? holders.expert_ranks : holders.ranks;
  const int rank = bucket.experts ? holders.expert_rank : holders.rank;
  const int savers = bucket.shards > 1 ? holders.copies : ranks;
  const int own = bucket.shards > 1 ? holders.copy() : rank;
  return static_cast<int>(param % static_cast<size_t>(savers)) == own;
}

int64_t snapshot_bytes(const ParamLayout& layout, const std::vector<ParamRow>& table,
                       const Grid& grid, OptimizerKind optimizer) {
  int64_t most = 0;
  for (const int rank : grid.group(0, Grid::kData)) {
    const Holders holders = grid.holders(grid.coord(rank));
    int64_t bytes = 0;
    for (size_t i = 0; i < layout.params.size(); ++i) {
      if (layout.params[i].tied_copy || !rank_saves(layout, i, holders)) continue;
      const int64_t part = owned_part(layout, layout.params[i], holders).count * 4;
      const int moments = moments_of(optimizer, table[layout.params[i].row]);
      bytes += (part + kSnapshotAlign - 1) / kSnapshotAlign * kSnapshotAlign * (1 + moments);
    }
    most = std::max(most, bytes);
  }
  return most;
}

}  // namespace mtl
