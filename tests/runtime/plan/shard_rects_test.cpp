// Which part of a parameter each TP rank holds.
#include <algorithm>
#include <map>
#include <rapidcheck.h>
#include <set>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/plan/shard_table.h"
#include "runtime/plan/shard_table_cases.h"

using namespace mtl;
using namespace mtl::test;

namespace {

bool same(const std::vector<ParamRect>& a, const std::vector<ParamRect>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.global_offset == y.global_offset && x.local_offset == y.local_offset &&
           x.extent == y.extent;
  });
}

// Calls visit(element of the global tensor, element of the local one) for each of a rectangle.
template <class Visit>
void for_each_element(const ParamRect& rect, const std::vector<int64_t>& shape,
                      const std::vector<int64_t>& local, Visit visit) {
  int64_t count = 1;
  for (int64_t e : rect.extent) count *= e;
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i, global = 0, at = 0, global_stride = 1, local_stride = 1;
    for (size_t d = shape.size(); d-- > 0;) {
      const int64_t p = rest % rect.extent[d];
      rest /= rect.extent[d];
      RC_ASSERT(rect.global_offset[d] + p < shape[d]);
      RC_ASSERT(rect.local_offset[d] + p < local[d]);
      global += (rect.global_offset[d] + p) * global_stride;
      at += (rect.local_offset[d] + p) * local_stride;
      global_stride *= shape[d];
      local_stride *= local[d];
    }
    visit(global, at);
  }
}

// Any parameter of any model in any division over TP.
struct Division {
  std::vector<ParamRow> table;
  GridSizes sizes;
  int tp = 1;
};
Division random_division() {
  const int tp = *rc::gen::element(1, 2, 3, 4, 6, 12);
  ModelShape shape = small_shape(12, 1);
  if (*rc::gen::arbitrary<bool>()) {
    const auto kv_heads =
        *rc::gen::suchThat(rc::gen::element<int64_t>(1, 2, 3, 4, 6, 12),
                           [&](int64_t kv) { return kv % tp == 0 || tp % kv == 0; });
    shape = small_llama(12, kv_heads, 2);
    shape.qk_norm = true;
    shape.qk_norm_whole = *rc::gen::arbitrary<bool>();
    shape.bias = *rc::gen::arbitrary<bool>();
    shape.qkv_bias = *rc::gen::arbitrary<bool>();
    shape.tie_embeddings = false;
    shape.experts = *rc::gen::element<int64_t>(0, 3);
    shape.experts_per_token = shape.experts > 0 ? 2 : 0;
    if (shape.experts > 0) {
      shape.shared_ffn = *rc::gen::element<int64_t>(0, 24);
      shape.shared_gate = shape.shared_ffn > 0 && *rc::gen::arbitrary<bool>();
      shape.expert_bias = *rc::gen::arbitrary<bool>();
      if (*rc::gen::arbitrary<bool>()) {
        shape.dense_layers = {0};
        shape.dense_layer_ffn = *rc::gen::element<int64_t>(24, 48);
      }
    }
  }
  return {shard_table(shape, false), tensor_parallel(tp), tp};
}

}  // namespace

TEST_CASE("fewer KV heads than TP ranks are copied to neighbours") {
  const ModelShape shape = small_llama(8, 2, 4);
  const auto table = shard_table(shape, false);
  const ParamRow& k = named(table, "model.layers.0.self_attn.k_proj.weight");
  for (const auto& [tp, copies] : {std::pair{1, 1}, {2, 1}, {4, 2}, {8, 4}}) {
    CAPTURE(tp);
    CHECK(tp_copies(k, tp) == copies);
    CHECK(tp_copies(named(table, "model.layers.0.self_attn.q_proj.weight"), tp) == 1);
    CHECK(tp_copies(named(table, "model.norm.weight"), tp) == tp);
    CHECK(local_shape(k, tensor_parallel(tp)) == std::vector<int64_t>{tp == 1 ? 8 : 4, 32});
    CHECK(local_kv_heads(shape, tp) == (tp == 1 ? 2 : 1));
  }
  const Grid grid(tensor_parallel(4));
  const auto third = local_rects(k, grid.sizes(), grid.coord(2));
  REQUIRE(third.size() == 1);
  CHECK(third[0].global_offset == std::vector<int64_t>{4, 0});
  CHECK(same(third, local_rects(k, grid.sizes(), grid.coord(3))));
}

TEST_CASE("the rectangles of all TP ranks tile every parameter and copies are equal") {
  const bool holds = rc::check([] {
    const Division division = random_division();
    const Grid grid(division.sizes);
    for (const ParamRow& row : division.table) {
      const std::vector<int64_t> local = local_shape(row, division.sizes);
      const int copies = tp_copies(row, division.tp);
      std::set<int64_t> covered;
      for (int rank = 0; rank < division.tp; ++rank) {
        const auto rects = local_rects(row, division.sizes, grid.coord(rank));
        if (rank % copies != 0) {
          const int first = rank / copies * copies;
          RC_ASSERT(same(rects, local_rects(row, division.sizes, grid.coord(first))));
          continue;
        }
        std::set<int64_t> local_covered;
        for (const ParamRect& rect : rects) {
          for_each_element(rect, row.shape, local, [&](int64_t global, int64_t at) {
            RC_ASSERT(covered.insert(global).second);
            RC_ASSERT(local_covered.insert(at).second);
          });
        }
      }
      RC_ASSERT(static_cast<int64_t>(covered.size()) == row.numel());
    }
  });
  CHECK(holds);
}

TEST_CASE("rectangles clipped to a range have exactly its elements") {
  const bool holds = rc::check([] {
    const Division division = random_division();
    const auto& row = division.table[*rc::gen::inRange<size_t>(0, division.table.size())];
    const std::vector<int64_t> local = local_shape(row, division.sizes);
    int64_t numel = 1;
    for (int64_t d : local) numel *= d;
    const auto first = *rc::gen::inRange<int64_t>(0, numel);
    const auto count = *rc::gen::inRange<int64_t>(0, numel - first + 1);
    const auto rects = local_rects(row, division.sizes,
                                   Grid(division.sizes).coord(*rc::gen::inRange(0, division.tp)));
    std::map<int64_t, int64_t> expected, clipped;  // global element by local one
    for (const ParamRect& rect : rects) {
      for_each_element(rect, row.shape, local, [&](int64_t global, int64_t at) {
        if (at >= first && at < first + count) expected[at] = global;
      });
    }
    const auto pieces = clip_to_range(rects, local, first, count);
    for (const ParamRect& piece : pieces) {
      for_each_element(piece, row.shape, local, [&](int64_t global, int64_t at) {
        RC_ASSERT(clipped.emplace(at, global).second);
      });
    }
    RC_ASSERT(clipped == expected);
    // Whole rows stay together: at most a part of a row, whole rows, and a part again.
    RC_ASSERT(pieces.size() <= 3 * rects.size());
  });
  CHECK(holds);
}

TEST_CASE("the vocabulary is split into equal buffers, padding last") {
  const ModelShape shape = small_shape();
  CHECK(vocab_shard(shape, 1, 0).valid == 65);
  CHECK(vocab_shard(shape, 4, 0).rows == 20);
  CHECK(vocab_shard(shape, 4, 3).first == 60);
  CHECK(vocab_shard(shape, 4, 3).valid == 5);
  CHECK(vocab_shard(shape, 6, 5).rows == 14);
  CHECK(vocab_shard(shape, 6, 5).valid == 0);
}

TEST_CASE("QKV is split inside each of its three parts") {
  const auto table = shard_table(small_shape(), false);
  const ParamRow* qkv = find_row(table, 0, "attn.qkv.weight");
  const GridSizes sizes = tensor_parallel(2);
  const auto rects = local_rects(*qkv, sizes, Grid(sizes).coord(1));
  REQUIRE(rects.size() == 3);
  CHECK(rects[1].global_offset == std::vector<int64_t>{0, 32 + 16});
  CHECK(rects[1].local_offset == std::vector<int64_t>{0, 16});
  CHECK(rects[1].extent == std::vector<int64_t>{32, 16});
}
