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
