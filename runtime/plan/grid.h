// The grid: rank <-> (tp, cp, ep, dp, pp), TP fastest, and every process group from one pure
// function. rank = tp + TP*(cp + CP*(ep + EP*(dp + DP*pp))), the order `tp-cp-ep-dp-pp` of
// Megatron-LM.
#pragma once

#include <array>
#include <initializer_list>
#include <string>
#include <vector>

namespace mtl {

enum class Axis : int { tp = 0, cp, ep, dp, pp };
inline constexpr int kAxes = 5;
const char* axis_name(Axis axis);

// A set of axes, e.g. {Axis::tp, Axis::dp}.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (Axis axis : axes) bits_ |= 1u << static_cast<int>(axis);
  }
  constexpr bool has(Axis axis) const { return (bits_ >> static_cast<int>(axis)) & 1u; }
  constexpr bool operator==(const AxisSet&) const = default;
  std::string name() const;  // "tp-dp"; "none" when empty

 private:
  unsigned bits_ = 0;
};

// The degree of each axis.
struct GridSizes {
  std::array<int, kAxes> degree = {1, 1, 1, 1, 1};
  // Of what ZeRO divides: each is on the replicas of dp / copies neighbours along dp.
  int copies = 1;
  int& operator[](Axis axis) { return degree[static_cast<size_t>(axis)]; }
  int operator[](Axis axis) const { return degree[static_cast<size_t>(axis)]; }
  int world() const;
};
// A rank's position on each axis.
struct Coord {
  std::array<int, kAxes> position = {};
  int& operator[](Axis axis) { return position[static_cast<size_t>(axis)]; }
  int operator[](Axis axis) const { return position[static_cast<size_t>(axis)]; }
  bool operator==(const Coord&) const = default;
};

// The ranks that hold the same parameters, and the position of one of them among these, as in
// group(rank, kData) and group(rank, kExpertData).
struct Holders {
  int ranks = 1, rank = 0;
  int expert_ranks = 1, expert_rank = 0;
  int copies = 1;
  // Of them those that divide a copy of what ZeRO divides, and the position among these.
  int shards() const { return ranks / copies; }
  int shard() const { return rank % shards(); }
  int expert_shards() const { return expert_ranks / copies; }
  int expert_shard() const { return expert_rank % expert_shards(); }
  int copy() const { return rank / shards(); }
};

class Grid {
 public:
  explicit Grid(GridSizes sizes);  // every degree >= 1
  const GridSizes& sizes() const { return sizes_; }
  int world() const { return sizes_.world(); }
  Coord coord(int rank) const;
  int rank(const Coord& coord) const;
  // Replicas of the model, each with sequences of its own. Those along ep divide its experts.
  int replicas() const { return sizes_[Axis::ep] * sizes_[Axis::dp]; }
  int replica(const Coord& coord) const {
    return coord[Axis::ep] + sizes_[Axis::ep] * coord[Axis::dp];
  }
  // Ranks with the same parameters, which share the tokens of a batch: replicas, and within one the
  // ranks of context parallelism; of experts fewer.
  static constexpr AxisSet kData = {Axis::cp, Axis::ep, Axis::dp};
  static constexpr AxisSet kExpertData = {Axis::cp, Axis::dp};
  // Ranks with the same work: those of a stage, with experts those of it that have the same ones.
  static constexpr AxisSet kSameWork = {Axis::tp, Axis::cp, Axis::dp};
  int data_ranks() const { return sizes_[Axis::cp] * replicas(); }
  Holders holders(const Coord& coord) const;
  // The ranks that differ from `rank` only on `axes`, ascending; `rank` is one of them.
  std::vector<int> group(int rank, AxisSet axes) const;
  // Of group(rank, axes), axes being kData or kExpertData: those that divide one copy of what ZeRO
  // divides, and those that hold the same shard of the other copies; ascending.
  std::vector<int> shard_group(int rank, AxisSet axes) const;
  std::vector<int> copy_group(int rank, AxisSet axes) const;
  // All groups over `axes`: a partition of 0..world-1, ordered by first member.
  std::vector<std::vector<int>> groups(AxisSet axes) const;

 private:
  GridSizes sizes_;
};

}  // namespace mtl
