#include "runtime/engine/rank_groups.h"

#include <numeric>
#include <utility>

#include "runtime/comm/clocked.h"
#include "runtime/plan/matrices.h"

namespace mtl {

namespace {

// TP ranks that hold copies of the same KV head.
std::vector<int> kv_group(const Plan& plan, int rank) {
  const std::vector<int> tensor = plan.grid.group(rank, {Axis::tp});
  int copies = 1;
  for (const ParamRow& row : plan.table) {
    if (row.units > 0) copies = tp_copies(row, static_cast<int>(tensor.size()));
  }
  const int first = plan.grid.coord(rank)[Axis::tp] / copies * copies;
  return {tensor.begin() + first, tensor.begin() + first + copies};
}

// The first and the last stage, where both hold a tied embedding.
std::vector<int> tied_group(const Plan& plan, int rank) {
  const std::vector<int> pipeline = plan.grid.group(rank, {Axis::pp});
  const bool end = rank == pipeline.front() || rank == pipeline.back();
  if (!plan.model.tie_embeddings || !end || pipeline.size() == 1) return {rank};
  return {pipeline.front(), pipeline.back()};
}

}  // namespace

RankGroups::RankGroups(const Plan& plan, CommWorld& world, StepClock* clock) {
  const int rank = world.rank();
  auto make = [&](Link link, const std::vector<int>& ranks) {
    groups_[static_cast<size_t>(link)] = world.group(ranks);
  };
  make(Link::tensor, plan.grid.group(rank, {Axis::tp}));
  make(Link::kv, kv_group(plan, rank));
  make(Link::context, plan.grid.group(rank, {Axis::cp}));
  make(Link::experts, plan.grid.group(rank, {Axis::ep}));
  const bool experts = plan.grid.sizes()[Axis::ep] > 1;
  const std::vector<int> alone = {rank};
  make(Link::data, plan.grid.shard_group(rank, Grid::kData));
  make(Link::expert_data, experts ? plan.grid.shard_group(rank, Grid::kExpertData) : alone);
  make(Link::copies, plan.grid.copy_group(rank, Grid::kData));
  make(Link::expert_copies, experts ? plan.grid.copy_group(rank, Grid::kExpertData) : alone);
  (*this)[Link::copies].share_lane((*this)[Link::data]);
  (*this)[Link::expert_copies].share_lane((*this)[Link::expert_data]);
  make(Link::activations, plan.grid.group(rank, {Axis::pp}));
  make(Link::gradients, plan.grid.group(rank, {Axis::pp}));
  make(Link::tied, tied_group(plan, rank));
  const bool muon = plan.optimizer == OptimizerKind::muon;
  const bool sharded = plan.stages.front().layout.sharded;
  make(Link::matrices, muon ? matrix_ranks(plan.grid, sharded, rank, false) : alone);
  make(Link::expert_matrices,
       muon && experts ? matrix_ranks(plan.grid, sharded, rank, true) : alone);
  auto make_for_numbers = [&](Link link, const std::vector<int>& ranks) {
    groups_[static_cast<size_t>(link)] = world.group_for_numbers(ranks);
  };
  make_for_numbers(Link::loss, plan.grid.group(rank, {Axis::cp, Axis::ep, Axis::dp, Axis::pp}));
  make_for_numbers(Link::norm, plan.grid.group(rank, {Axis::tp, Axis::ep, Axis::pp}));
  std::vector<int> everybody(static_cast<size_t>(world.size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  world_ = clocked(world.group_for_numbers(everybody), clock);
  // Behind share_lane(), for which a transport looks for its own.
  for (auto& group : groups_) group = clocked(std::move(group), clock);
}

}  // namespace mtl
