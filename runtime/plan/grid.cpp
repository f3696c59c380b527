#include "runtime/plan/grid.h"

#include <algorithm>
#include <cassert>

namespace mtl {

const char* axis_name(Axis axis) {
  static constexpr const char* kNames[kAxes] = {"tp", "cp", "ep", "dp", "pp"};
  return kNames[static_cast<int>(axis)];
}

std::string AxisSet::name() const {
  std::string text;
  for (int i = 0; i < kAxes; ++i) {
    if (!has(static_cast<Axis>(i))) continue;
    if (!text.empty()) text += '-';
    text += axis_name(static_cast<Axis>(i));
  }
  return text.empty() ? "none" : text;
}

int GridSizes::world() const {
  int product = 1;
  for (int d : degree) product *= d;
  return product;
}

Grid::Grid(GridSizes sizes) : sizes_(sizes) {
  for ([[maybe_unused]] int d : sizes_.degree) assert(d >= 1);
  assert(sizes_[Axis::dp] % sizes_.copies == 0);
}

Coord Grid::coord(int rank) const {
  Coord coord;
  for (size_t i = 0; i < kAxes; ++i) {
    coord.position[i] = rank % sizes_.degree[i];
    rank /= sizes_.degree[i];
  }
  return coord;
}

int Grid::rank(const Coord& coord) const {
  int rank = 0;
  for (size_t i = kAxes; i-- > 0;) rank = rank * sizes_.degree[i] + coord.position[i];
  return rank;
}

Holders Grid::holders(const Coord& coord) const {
  const int cp = sizes_[Axis::cp];
  return {.ranks = cp * replicas(),
          .rank = coord[Axis::cp] + cp * replica(coord),
          .expert_ranks = cp * sizes_[Axis::dp],
          .expert_rank = coord[Axis::cp] + cp * coord[Axis::dp],
          .copies = sizes_.copies};
}

std::vector<int> Grid::group(int member, AxisSet axes) const {
  // Walk the ranks that share every coordinate outside `axes`. Axes vary from the fastest to the
  // slowest, so the ranks come out ascending.
  std::vector<int> ranks = {0};
  Coord base = coord(member);
  int stride = 1;
  int fixed = 0;
  for (size_t i = 0; i < kAxes; ++i) {
    if (axes.has(static_cast<Axis>(i))) {
      const size_t count = ranks.size();
      for (int position = 1; position < sizes_.degree[i]; ++position) {
        for (size_t k = 0; k < count; ++k) ranks.push_back(ranks[k] + position * stride);
      }
    } else {
      fixed += base.position[i] * stride;
    }
    stride *= sizes_.degree[i];
  }
  for (int& r : ranks) r += fixed;
  return ranks;
}

// dp is the slowest of the axes, so a copy is on neighbours in the group.
std::vector<int> Grid::shard_group(int rank, AxisSet axes) const {
  const std::vector<int> all = group(rank, axes);
  const auto position = std::find(all.begin(), all.end(), rank) - all.begin();
  const auto shards = static_cast<std::ptrdiff_t>(all.size()) / sizes_.copies;
  const auto first = all.begin() + position / shards * shards;
  return {first, first + shards};
}

std::vector<int> Grid::copy_group(int rank, AxisSet axes) const {
  const std::vector<int> all = group(rank, axes);
  const auto shards = all.size() / static_cast<size_t>(sizes_.copies);
  std::vector<int> ranks;
  const auto position = static_cast<size_t>(std::find(all.begin(), all.end(), rank) - all.begin());
  for (size_t i = position % shards; i < all.size(); i += shards) ranks.push_back(all[i]);
  return ranks;
}

std::vector<std::vector<int>> Grid::groups(AxisSet axes) const {
  std::vector<std::vector<int>> all;
  for (int r = 0; r < world(); ++r) {
    // The first of a group is at 0 on all of its axes.
    const Coord at = coord(r);
    bool first = true;
    for (size_t i = 0; i < kAxes; ++i) {
      if (axes.has(static_cast<Axis>(i))) first = first && at.position[i] == 0;
    }
    if (first) all.push_back(group(r, axes));
  }
  return all;
}

}  // namespace mtl
