// Who orthogonalizes which matrix, what that takes and sends, and where second moments lie: for
// random models and layouts.
#include "runtime/plan/matrices.h"

#include <algorithm>
#include <map>
#include <rapidcheck.h>
#include <set>

#include <doctest/doctest.h>

using namespace mtl;

namespace matrices_test {

namespace {

struct Case {
  ModelShape shape;
  GridSizes sizes;
  std::vector<ParamRow> table;
  ParamLayout layout;

  static Case random() {
    Case c;
    const bool mixture = *rc::gen::arbitrary<bool>();
    const int64_t head_dim = *rc::gen::element<int64_t>(8, 40);
    c.shape.layers = *rc::gen::inRange<int64_t>(1, 5);
    c.shape.heads = 4;
    c.shape.kv_heads = mixture ? 2 : 4;
    c.shape.head_dim = head_dim;
    c.shape.hidden = 4 * head_dim;
    c.shape.ffn = 3 * c.shape.hidden;
    c.shape.vocab = c.shape.padded_vocab = 304;
    c.shape.max_seq = 12;
    if (mixture) {
      c.shape.norm = NormType::rmsnorm;
      c.shape.activation = Activation::swiglu;
      c.shape.position = PositionType::rope;
      c.shape.bias = c.shape.qkv_bias = c.shape.tie_embeddings = false;
      c.shape.experts = 4;
      c.shape.experts_per_token = 2;
      c.sizes[Axis::ep] = *rc::gen::element(1, 2, 4);
    }
    c.sizes[Axis::tp] = *rc::gen::element(1, 2, 4);
    c.sizes[Axis::cp] = *rc::gen::element(1, 2);
    c.sizes[Axis::dp] = *rc::gen::element(1, 2, 3);
    c.table = shard_table(c.shape, false);
    const ChunkRange all = {.layers = c.shape.layers, .embedding = true, .head = true};
    c.layout = param_layout(c.table, c.sizes, {all}, c.shape.layers, *rc::gen::inRange(0, 4),
                            *rc::gen::element<int64_t>(1, 5'000, int64_t{1} << 40), false, true);
    return c;
  }
  const ParamRow& row(size_t param) const { return table[layout.params[param].row]; }
  std::vector<Coord> coords() const {
    std::vector<Coord> all;
    const Grid grid(sizes);
    for (int rank = 0; rank < grid.world(); ++rank) all.push_back(grid.coord(rank));
    return all;
  }
};

}  // namespace

TEST_CASE("every matrix has one rank that orthogonalizes it, and rounds go from the largest on") {
  CHECK(rc::check([] {
    const Case c = Case::random();
    std::multiset<size_t> taken;
    std::map<bool, int64_t> before;
    for (const MatrixRound& round : matrix_rounds(c.layout, c.table, c.sizes)) {
      const int ranks = matrix_group(c.layout, c.sizes, round.experts).ranks();
      RC_ASSERT(!round.params.empty());
      RC_ASSERT(round.params.size() <= static_cast<size_t>(ranks));
      for (const size_t param : round.params) {
        taken.insert(param);
        RC_ASSERT(c.layout.buckets[c.layout.params[param].bucket].experts == round.experts);
        const int64_t numel = c.layout.params[param].numel;
        int64_t& last = before.try_emplace(round.experts, numel).first->second;
        RC_ASSERT(numel <= last);
        last = numel;
      }
    }
    for (size_t i = 0; i < c.layout.params.size(); ++i) {
      const ParamRow& row = c.row(i);
      const bool within = row.layer >= 0 && row.layer < c.shape.layers && row.shape.size() == 2;
      RC_ASSERT(row.matrix == within);
      RC_ASSERT(taken.count(i) == (within ? 1u : 0u));
    }
  }));
}

TEST_CASE("what ranks send of matrices adds up, and there is room for it") {
  CHECK(rc::check([] {
    const Case c = Case::random();
    const MatrixNeeds needs = matrix_needs(c.layout, c.table, c.sizes);
    MatrixTraffic all;
    const std::vector<Coord> coords = c.coords();
    for (const Coord& coord : coords) {
      const MatrixTraffic one = matrix_traffic_of(c.layout, c.table, c.sizes, coord);
      all.dense += one.dense;
      all.experts += one.experts;
    }
    const MatrixTraffic mean = matrix_traffic(c.layout, c.table, c.sizes);
    const auto ranks = static_cast<int64_t>(coords.size());
    RC_ASSERT(mean.dense == all.dense / ranks);
    RC_ASSERT(mean.experts == all.experts / ranks);
    for (const MatrixRound& round : matrix_rounds(c.layout, c.table, c.sizes)) {
      const MatrixGroup group = matrix_group(c.layout, c.sizes, round.experts);
      for (const size_t param : round.params) {
        const ParamPlacement& placed = c.layout.params[param];
        int64_t local = 0;
        for (int shard = 0; shard < group.shards; ++shard) {
          local += part_of_shard(c.layout, placed, shard).count;
        }
        RC_ASSERT(local == placed.numel);  // the shards of a copy are all of it
        RC_ASSERT(group.ranks() == 1 || needs.arrived >= group.tp * local);
        RC_ASSERT(needs.matrix >= c.row(param).numel() / c.row(param).segments);
      }
      for (int shard = 0; shard < group.shards && group.ranks() > 1; ++shard) {
        int64_t parts = 0;
        for (const size_t param : round.params) {
          parts += part_of_shard(c.layout, c.layout.params[param], shard).count;
        }
        RC_ASSERT(parts <= needs.parts);
      }
    }
  }));
}

TEST_CASE("second moments of all but matrices lie apart, and within what is planned") {
  CHECK(rc::check([] {
    const Case c = Case::random();
    const MatrixNeeds needs = matrix_needs(c.layout, c.table, c.sizes);
    for (const Coord& coord : c.coords()) {
      const Holders holders = Grid(c.sizes).holders(coord);
      const auto at = second_moments(c.layout, c.table, holders, OptimizerKind::muon);
      int64_t end = 0;
      for (size_t i = 0; i < at.size(); ++i) {
        if (c.row(i).matrix) continue;
        RC_ASSERT(at[i] >= end);
        RC_ASSERT(at[i] % 64 == 0);  // where kernels can load several at once
        end = at[i] + owned_part(c.layout, c.layout.params[i], holders).count;
      }
      RC_ASSERT(end <= needs.others);
      const auto as_state = second_moments(c.layout, c.table, holders, OptimizerKind::adamw);
      for (size_t i = 0; i < at.size(); ++i) {
        RC_ASSERT(as_state[i] == owned_part(c.layout, c.layout.params[i], holders).state);
      }
    }
  }));
}

}  // namespace matrices_test
