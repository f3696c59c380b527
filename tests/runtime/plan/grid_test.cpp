#include "runtime/plan/grid.h"

#include <algorithm>
#include <rapidcheck.h>
#include <set>

#include <doctest/doctest.h>

using namespace mtl;

namespace {

GridSizes sizes(int tp, int cp, int ep, int dp, int pp) {
  GridSizes s;
  s.degree = {tp, cp, ep, dp, pp};
  return s;
}

}  // namespace

TEST_CASE("groups of many ranks are found in no time") {
  GridSizes sizes;
  sizes[Axis::tp] = 2;
  sizes[Axis::dp] = 1 << 17;
  const auto groups = Grid(sizes).groups({Axis::dp});
  REQUIRE(groups.size() == 2);
  CHECK(groups[1].size() == 1 << 17);
  CHECK(groups[1].front() == 1);
}

TEST_CASE("rank order is tp-cp-ep-dp-pp, TP fastest") {
  const Grid grid(sizes(2, 1, 1, 2, 2));
  CHECK(grid.world() == 8);
  CHECK(grid.group(0, {Axis::tp}) == std::vector<int>{0, 1});
  CHECK(grid.group(0, {Axis::dp}) == std::vector<int>{0, 2});
  CHECK(grid.group(0, {Axis::pp}) == std::vector<int>{0, 4});
  CHECK(grid.group(7, {Axis::dp}) == std::vector<int>{5, 7});
  CHECK(grid.group(3, {Axis::tp, Axis::dp}) == std::vector<int>{0, 1, 2, 3});
  CHECK(grid.groups({Axis::tp}) == std::vector<std::vector<int>>{{0, 1}, {2, 3}, {4, 5}, {6, 7}});
}

TEST_CASE("copies of shards are on neighbours, and each shard once in every copy") {
  GridSizes two = sizes(2, 1, 1, 4, 2);
  two.copies = 2;
  CHECK(Grid(two).shard_group(0, Grid::kData) == std::vector<int>{0, 2});
  CHECK(Grid(two).shard_group(7, Grid::kData) == std::vector<int>{5, 7});
  CHECK(Grid(two).copy_group(0, Grid::kData) == std::vector<int>{0, 4});
  CHECK(Grid(two).copy_group(15, Grid::kData) == std::vector<int>{11, 15});
  const bool holds = rc::check([] {
    GridSizes s;
    for (int& d : s.degree) d = *rc::gen::inRange(1, 4);
    s.copies = *rc::gen::inRange(1, 4);
    s[Axis::dp] *= s.copies;
    const Grid grid(s);
    for (const bool experts : {false, true}) {
      const AxisSet axes = experts ? Grid::kExpertData : Grid::kData;
      for (int rank = 0; rank < grid.world(); ++rank) {
        const Holders own = grid.holders(grid.coord(rank));
        const auto shard = [&](const Holders& of) {
          return experts ? of.expert_shard() : of.shard();
        };
        const std::vector<int> copy = grid.shard_group(rank, axes);
        RC_ASSERT(static_cast<int>(copy.size()) == (experts ? own.expert_shards() : own.shards()));
        RC_ASSERT(copy[static_cast<size_t>(shard(own))] == rank);
        for (const int other : copy) {
          RC_ASSERT(grid.holders(grid.coord(other)).copy() == own.copy());
        }
        const std::vector<int> same = grid.copy_group(rank, axes);
        RC_ASSERT(static_cast<int>(same.size()) == s.copies);
        RC_ASSERT(same[static_cast<size_t>(own.copy())] == rank);
        for (const int other : same)
          RC_ASSERT(shard(grid.holders(grid.coord(other))) == shard(own));
        // Together they are all that hold it.
        std::set<int> all;
        for (const int member : same) {
          for (const int other : grid.shard_group(member, axes)) all.insert(other);
        }
        const std::vector<int> holders = grid.group(rank, axes);
        RC_ASSERT(all == std::set<int>(holders.begin(), holders.end()));
      }
    }
  });
  CHECK(holds);
}

TEST_CASE("rank and coord are inverse, and groups partition the world") {
  const bool holds = rc::check([] {
    GridSizes s;
    for (int& d : s.degree) d = *rc::gen::inRange(1, 5);
    const Grid grid(s);
    AxisSet axes;
    switch (*rc::gen::inRange(0, 4)) {
      case 0:
        axes = {Axis::tp};
        break;
      case 1:
        axes = {Axis::dp, Axis::cp};
        break;
      case 2:
        axes = {Axis::pp, Axis::tp};
        break;
      default:
        axes = {};
        break;
    }
    std::set<int> seen;
    for (const std::vector<int>& group : grid.groups(axes)) {
      RC_ASSERT(std::is_sorted(group.begin(), group.end()));
      for (int rank : group) {
        RC_ASSERT(seen.insert(rank).second);
        RC_ASSERT(grid.group(rank, axes) == group);
        const Coord coord = grid.coord(rank), first = grid.coord(group.front());
        for (int i = 0; i < kAxes; ++i) {
          const auto axis = static_cast<Axis>(i);
          if (!axes.has(axis)) RC_ASSERT(coord[axis] == first[axis]);
        }
      }
    }
    RC_ASSERT(static_cast<int>(seen.size()) == grid.world());
    for (int rank = 0; rank < grid.world(); ++rank) RC_ASSERT(grid.rank(grid.coord(rank)) == rank);
  });
  CHECK(holds);
}
