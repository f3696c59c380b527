#include "runtime/plan/shard_table.h"

#include <rapidcheck.h>
#include <set>

#include <doctest/doctest.h>

using namespace mtl;

namespace {

ModelShape small_shape(int64_t heads = 4, int64_t head_dim = 8) {
  ModelShape shape;
  shape.layers = 2;
  shape.heads = shape.kv_heads = heads;
  shape.head_dim = head_dim;
  shape.hidden = heads * head_dim;
  shape.ffn = 4 * shape.hidden;
  shape.vocab = 65;
  shape.vocab_pad_to = 16;
  shape.padded_vocab = 80;
  shape.max_seq = 12;
  return shape;
}

GridSizes tensor_parallel(int tp, int dp = 1) {
  GridSizes sizes;
  sizes[Axis::tp] = tp;
  sizes[Axis::dp] = dp;
  return sizes;
}

const ParamRow* find_row(const std::vector<ParamRow>& table, int layer, const std::string& slot) {
  for (const ParamRow& row : table) {
    if (row.layer == layer && row.slot == slot) return &row;
  }
  return nullptr;
}

}  // namespace

TEST_CASE("the rows of a GPT-2 carry Hugging Face's names and shapes, in forward order") {
  const auto table = shard_table(small_shape(), false);
  CHECK(table.front().name == "transformer.wte.weight");
  CHECK(table.front().shape == std::vector<int64_t>{65, 32});
  CHECK(table.back().name == "transformer.ln_f.bias");
  const ParamRow* qkv = find_row(table, 1, "attn.qkv.weight");
  REQUIRE(qkv);
  CHECK(qkv->name == "transformer.h.1.attn.c_attn.weight");
  CHECK(qkv->shape == std::vector<int64_t>{32, 96});
  CHECK(qkv->segments == 3);
  CHECK(qkv->decays);
  CHECK_FALSE(find_row(table, 0, "attn.qkv.bias")->decays);
  CHECK(find_row(table, 0, "attn.proj.bias")->replicated_over.has(Axis::tp));
  CHECK_FALSE(find_row(table, 0, "attn.proj.weight")->replicated_over.has(Axis::tp));
  // Residual projections start smaller by sqrt(2 L).
  CHECK(find_row(table, 0, "mlp.down.weight")->init_std == doctest::Approx(0.02 / 2));

  ModelShape untied = small_shape();
  untied.tie_embeddings = false;
  untied.bias = false;
  const auto bare = shard_table(untied, false);
  CHECK(bare.back().name == "lm_head.weight");
  CHECK(find_row(bare, 0, "attn.qkv.bias") == nullptr);
}

TEST_CASE("the parameters of GPT-2 124M are counted as everybody counts them") {
  ModelShape shape;
  shape.layers = 12;
  shape.heads = shape.kv_heads = 12;
  shape.head_dim = 64;
  shape.hidden = 768;
  shape.ffn = 3072;
  shape.vocab = 50257;
  shape.padded_vocab = 50304;
  shape.max_seq = 1024;
  int64_t total = 0;
  for (const ParamRow& row : shard_table(shape, false)) total += row.numel();
  CHECK(total == 124439808);
}

TEST_CASE("the rectangles of all TP ranks tile every parameter exactly once") {
  const bool holds = rc::check([] {
    const int tp = *rc::gen::element(1, 2, 3, 4, 6);
    const auto table = shard_table(small_shape(12, 1), false);
    const GridSizes sizes = tensor_parallel(tp);
    const Grid grid(sizes);
    for (const ParamRow& row : table) {
      const std::vector<int64_t> local = local_shape(row, sizes);
      std::set<int64_t> covered;
      for (int rank = 0; rank < (row.tp_axis < 0 ? 1 : tp); ++rank) {
        std::set<int64_t> local_covered;
        for (const ParamRect& rect : local_rects(row, sizes, grid.coord(rank))) {
          int64_t count = 1;
          for (int64_t e : rect.extent) count *= e;
          for (int64_t i = 0; i < count; ++i) {
            int64_t rest = i, global = 0, at = 0, global_stride = 1, local_stride = 1;
            for (size_t d = row.shape.size(); d-- > 0;) {
              const int64_t p = rest % rect.extent[d];
              rest /= rect.extent[d];
              RC_ASSERT(rect.global_offset[d] + p < row.shape[d]);
              RC_ASSERT(rect.local_offset[d] + p < local[d]);
              global += (rect.global_offset[d] + p) * global_stride;
              at += (rect.local_offset[d] + p) * local_stride;
              global_stride *= row.shape[d];
              local_stride *= local[d];
            }
            RC_ASSERT(covered.insert(global).second);
            RC_ASSERT(local_covered.insert(at).second);
          }
        }
      }
      RC_ASSERT(static_cast<int64_t>(covered.size()) == row.numel());
    }
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
