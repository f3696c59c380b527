#include "runtime/plan/matrices.h"

#include <algorithm>

namespace mtl {

namespace {

constexpr int64_t kAlignMoments = 64;  // elements: parts begin where 16-byte accesses may

bool is_experts(const ParamLayout& layout, size_t param) {
  return layout.buckets[layout.params[param].bucket].experts;
}

// What shard `shard` has of a parameter.
int64_t count_of(const ParamLayout& layout, size_t param, int shard) {
  return part_of_shard(layout, layout.params[param], shard).count;
}

// Elements that are no matrices', of the shard of the buckets that has most.
int64_t most_others(const ParamLayout& layout, const std::vector<ParamRow>& table, bool experts) {
  std::vector<int64_t> sums = {0};
  for (size_t i = 0; i < layout.params.size(); ++i) {
    const ParamPlacement& param = layout.params[i];
    const Bucket& bucket = layout.buckets[param.bucket];
    if (bucket.experts != experts || table[param.row].matrix) continue;
    sums.resize(static_cast<size_t>(bucket.shards));
    const int64_t length = bucket.numel / bucket.shards;
    const int64_t first = (param.offset - bucket.offset) / length;
    const int64_t last = (param.offset + param.numel - 1 - bucket.offset) / length;
    for (int64_t shard = first; shard <= last; ++shard) {
      sums[static_cast<size_t>(shard)] +=
          round_up(count_of(layout, i, static_cast<int>(shard)), kAlignMoments);
    }
  }
  return *std::max_element(sums.begin(), sums.end());
}

// What the owner of a matrix gives back to the others of its group.
int64_t sent_back(const ParamLayout& layout, const MatrixRound& round, const MatrixGroup& group,
                  size_t owner) {
  const size_t param = round.params[owner];
  const int shard = static_cast<int>(owner) / group.tp;
  return group.tp * layout.params[param].numel - count_of(layout, param, shard);
}

}  // namespace

MatrixGroup matrix_group(const ParamLayout& layout, const GridSizes& sizes, bool experts) {
  MatrixGroup group{.tp = sizes[Axis::tp]};
  for (const Bucket& bucket : layout.buckets) {
    if (bucket.experts == experts) group.shards = bucket.shards;
  }
  return group;
}

std::vector<int> matrix_ranks(const Grid& grid, bool sharded, int rank, bool experts) {
  const AxisSet axes = experts ? Grid::kExpertData : Grid::kData;
  std::vector<int> ranks;
  for (const int holder : sharded ? grid.shard_group(rank, axes) : std::vector{rank}) {
    const std::vector<int> tensor = grid.group(holder, {Axis::tp});
    ranks.insert(ranks.end(), tensor.begin(), tensor.end());
  }
  return ranks;
}

std::vector<MatrixRound> matrix_rounds(const ParamLayout& layout,
                                       const std::vector<ParamRow>& table, const GridSizes& sizes) {
  std::vector<MatrixRound> rounds;
  for (const bool experts : {false, true}) {
    std::vector<size_t> matrices;
    for (size_t i = 0; i < layout.params.size(); ++i) {
      const bool chosen = table[layout.params[i].row].matrix && is_experts(layout, i) == experts;
      if (chosen) matrices.push_back(i);
    }
    std::stable_sort(matrices.begin(), matrices.end(), [&](size_t a, size_t b) {
      return layout.params[a].numel > layout.params[b].numel;
    });
    const auto ranks = static_cast<size_t>(matrix_group(layout, sizes, experts).ranks());
    for (size_t first = 0; first < matrices.size(); first += ranks) {
      const auto begin = matrices.begin() + static_cast<std::ptrdiff_t>(first);
      const auto count = std::min(ranks, matrices.size() - first);
      rounds.push_back({experts, {begin, begin + static_cast<std::ptrdiff_t>(count)}});
    }
  }
  return rounds;
}

MatrixNeeds matrix_needs(const ParamLayout& layout, const std::vector<ParamRow>& table,
                         const GridSizes& sizes) {
  MatrixNeeds needs;
  needs.others = most_others(layout, table, false) + most_others(layout, table, true);
  const auto raise = [](int64_t& most, int64_t value) { most = std::max(most, value); };
  for (const MatrixRound& round : matrix_rounds(layout, table, sizes)) {
    const MatrixGroup group = matrix_group(layout, sizes, round.experts);
    for (int shard = 0; shard < group.shards && group.ranks() > 1; ++shard) {
      int64_t parts = 0;
      for (const size_t param : round.params) parts += count_of(layout, param, shard);
      raise(needs.parts, parts);
    }
    for (const size_t param : round.params) {
      const ParamRow& row = table[layout.params[param].row];
      const int64_t numel = row.numel();
      const int64_t columns = row.shape[1] / row.segments;
      const int64_t smaller = std::min(row.shape[0], columns);
      if (group.ranks() > 1) raise(needs.arrived, group.tp * layout.params[param].numel);
      if (group.ranks() == 1 || group.tp > 1) raise(needs.whole, numel);
      if (group.tp > 1 && row.tp_axis == 1) raise(needs.columns, numel);
      if (row.segments > 1) raise(needs.segment, row.shape[0] * columns);
      raise(needs.matrix, row.shape[0] * columns);
      raise(needs.gram, smaller * smaller);
    }
  }
  return needs;
}

MatrixTraffic matrix_traffic(const ParamLayout& layout, const std::vector<ParamRow>& table,
                             const GridSizes& sizes) {
  MatrixTraffic traffic;
  for (const bool experts : {false, true}) {
    const MatrixGroup group = matrix_group(layout, sizes, experts);
    int64_t& mean = experts ? traffic.experts : traffic.dense;
    for (const MatrixRound& round : matrix_rounds(layout, table, sizes)) {
      if (round.experts != experts) continue;
      for (size_t owner = 0; owner < round.params.size(); ++owner) {
        mean += 2 * sent_back(layout, round, group, owner);  // as much as it was sent
      }
    }
    mean /= group.ranks();
  }
  return traffic;
}

MatrixTraffic matrix_traffic_of(const ParamLayout& layout, const std::vector<ParamRow>& table,
                                const GridSizes& sizes, const Coord& coord) {
  MatrixTraffic traffic;
  const Holders holders = Grid(sizes).holders(coord);
  for (const MatrixRound& round : matrix_rounds(layout, table, sizes)) {
    const MatrixGroup group = matrix_group(layout, sizes, round.experts);
    const int holder = round.experts ? holders.expert_shard() : holders.shard();
    const int shard = group.shards == 1 ? 0 : holder;
    const auto rank = static_cast<size_t>(coord[Axis::tp] + group.tp * shard);
    int64_t& sent = round.experts ? traffic.experts : traffic.dense;
    for (size_t owner = 0; owner < round.params.size(); ++owner) {
      sent += owner == rank ? sent_back(layout, round, group, owner)
                            : count_of(layout, round.params[owner], shard);
    }
  }
  return traffic;
}

int moments_of(OptimizerKind optimizer, const ParamRow& row) {
  return optimizer == OptimizerKind::muon && row.matrix ? 1 : moments_of(optimizer);
}

std::vector<int64_t> second_moments(const ParamLayout& layout, const std::vector<ParamRow>& table,
                                    const Holders& holders, OptimizerKind optimizer) {
  std::vector<int64_t> offsets;
  int64_t next = 0;
  for (const ParamPlacement& param : layout.params) {
    const OwnedPart part = owned_part(layout, param, holders);
    offsets.push_back(optimizer == OptimizerKind::muon ? next : part.state);
    if (!table[param.row].matrix) next += round_up(part.count, kAlignMoments);
  }
  return offsets;
}

}  // namespace mtl
