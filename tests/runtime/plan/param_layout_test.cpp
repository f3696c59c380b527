#include "runtime/plan/param_layout.h"

#include <algorithm>
#include <map>
#include <rapidcheck.h>

#include <doctest/doctest.h>

#include "runtime/plan/memory/saved_parts.h"

using namespace mtl;

namespace {

// Small tensors lie several to a chunk of the norm (head_dim 8), or most are longer than one (40).
ModelShape model(bool llama, bool tied, int64_t layers, int64_t head_dim) {
  ModelShape shape;
  shape.layers = layers;
  shape.heads = 4;
  shape.kv_heads = llama ? 2 : 4;
  shape.head_dim = head_dim;
  shape.hidden = 4 * head_dim;
  shape.ffn = 4 * shape.hidden;
  shape.vocab = 300;
  shape.vocab_pad_to = 16;
  shape.padded_vocab = 304;
  shape.max_seq = 12;
  shape.tie_embeddings = tied;
  if (llama) {
    shape.norm = NormType::rmsnorm;
    shape.activation = Activation::swiglu;
    shape.position = PositionType::rope;
    shape.qk_norm = true;
    shape.qk_norm_whole = tied;
    shape.norm_place = tied ? NormPlace::both : NormPlace::input;
    shape.bias = shape.qkv_bias = false;
  }
  return shape;
}

struct Case {
  ModelShape shape;
  int tp = 1, pp = 1, chunks = 1, shards = 1, copies = 1;
  int64_t bucket_numel = int64_t{1} << 40;
  int zero = 1;

  static Case random() {
    Case c;
    c.shape = model(*rc::gen::arbitrary<bool>(), *rc::gen::arbitrary<bool>(),
                    *rc::gen::inRange<int64_t>(1, 9), *rc::gen::element<int64_t>(8, 40));
    c.tp = *rc::gen::element(1, 2, 4);
    c.pp = *rc::gen::inRange(1, 5);
    c.chunks = c.pp == 1 ? 1 : *rc::gen::inRange(1, 4);
    c.shards = *rc::gen::element(1, 2, 3, 8);
    c.zero = c.pp == 1 ? *rc::gen::inRange(0, 4) : 1;
    if (c.zero == 0) c.shards = 1;
    if (c.shards > 1) c.copies = *rc::gen::element(1, 2, 3);
    c.bucket_numel = *rc::gen::element<int64_t>(1, 5'000, 60'000, int64_t{1} << 40);
    return c;
  }
  Holders holder(int shard, int copy = 0) const {
    return {.ranks = copies * shards, .rank = copy * shards + shard, .copies = copies};
  }
  std::vector<ParamRow> table() const { return shard_table(shape, false); }
  bool tied_over_stages() const { return shape.tie_embeddings && pp > 1; }
  // Of each stage.
  std::vector<ParamLayout> layouts() const {
    GridSizes sizes;
    sizes[Axis::tp] = tp;
    sizes[Axis::dp] = shards * copies;
    sizes.copies = copies;
    std::vector<ParamLayout> result;
    for (const auto& stage :
         pipeline_layout(balanced_layers(shape.layers, pp * chunks, 1), pp, chunks)) {
      result.push_back(param_layout(table(), sizes, stage, shape.layers, zero, bucket_numel,
                                    tied_over_stages()));
    }
    return result;
  }
};

int layer_of(const ParamPlacement& param, const Case& c, const std::vector<ParamRow>& table) {
  return param.tied_copy ? static_cast<int>(c.shape.layers) : table[param.row].layer;
}

// The elements of a parameter at which a new chunk of the norm begins.
std::vector<int64_t> norm_borders(const ParamPlacement& param) {
  std::vector<int64_t> borders;
  for (int64_t at = (param.offset / kSquaresChunk + 1) * kSquaresChunk;
       at < param.offset + param.numel; at += kSquaresChunk) {
    borders.push_back(at - param.offset);
  }
  return borders;
}

}  // namespace

TEST_CASE("buckets tile the flat buffer and parameters lie in them in the order of forward") {
  const bool holds = rc::check([] {
    const Case c = Case::random();
    const std::vector<ParamRow> table = c.table();
    std::map<size_t, int> seen;  // rows
    int copies = 0;
    for (const ParamLayout& layout : c.layouts()) {
      int64_t at = 0;
      size_t next = 0;
      for (size_t b = 0; b < layout.buckets.size(); ++b) {
        const Bucket& bucket = layout.buckets[b];
        RC_ASSERT(bucket.offset == at);
        RC_ASSERT(bucket.numel > 0);
        RC_ASSERT(bucket.numel % (kSquaresChunk * c.shards) == 0);
        RC_ASSERT(bucket.first_param == next);
        RC_ASSERT(bucket.end_param > bucket.first_param);
        int64_t end = bucket.offset;  // of what lies in it
        for (; next < bucket.end_param; ++next) {
          const ParamPlacement& param = layout.params[next];
          const ParamRow& row = table[param.row];
          RC_ASSERT(param.bucket == b);
          RC_ASSERT(param.chunk == bucket.chunk);
          const bool fused = next > bucket.first_param &&
                             table[layout.params[next - 1].row].slot == row.slot &&
                             table[layout.params[next - 1].row].layer == row.layer;
          if (fused) {
            RC_ASSERT(param.offset == end);
          } else {
            RC_ASSERT(param.offset >= end);
            RC_ASSERT(param.offset % 64 == 0);
          }
          end = param.offset + param.numel;
          ++seen[param.row];
          copies += param.tied_copy;
        }
        RC_ASSERT(end <= bucket.offset + bucket.numel);
        at += bucket.numel;
      }
      RC_ASSERT(next == layout.params.size());
      RC_ASSERT(at == layout.total);
    }
    RC_ASSERT(copies == (c.tied_over_stages() ? 1 : 0));
    for (size_t row = 0; row < table.size(); ++row) {
      RC_ASSERT(seen[row] == (row == 0 ? 1 + copies : 1));
    }
  });
  CHECK(holds);
}

TEST_CASE("a bucket is complete when backward has passed its layer and a tied one is alone") {
  const bool holds = rc::check([] {
    const Case c = Case::random();
    const std::vector<ParamRow> table = c.table();
    for (const ParamLayout& layout : c.layouts()) {
      for (size_t b = 0; b < layout.buckets.size(); ++b) {
        const Bucket& bucket = layout.buckets[b];
        int lowest = static_cast<int>(c.shape.layers);
        bool tokens = false;
        for (size_t i = bucket.first_param; i < bucket.end_param; ++i) {
          lowest = std::min(lowest, layer_of(layout.params[i], c, table));
          tokens = tokens || table[layout.params[i].row].slot == "tokens";
        }
        RC_ASSERT(bucket.layer == lowest);
        RC_ASSERT(bucket.tied == (tokens && c.tied_over_stages()));
        if (bucket.tied) RC_ASSERT(bucket.end_param == bucket.first_param + 1);
        if (b == 0) continue;
        // Backward completes them from the last to the first.
        const Bucket& before = layout.buckets[b - 1];
        RC_ASSERT(before.chunk <= bucket.chunk);
        if (before.chunk == bucket.chunk) RC_ASSERT(before.layer <= bucket.layer);
        // One that ends early has a reason to.
        int64_t numel = 0;
        for (size_t i = bucket.first_param; i < bucket.end_param; ++i) {
          numel += layout.params[i].numel;
        }
        const auto end = [&](const Bucket& one) {
          return one.layer < 0 || one.layer == c.shape.layers;
        };
        RC_ASSERT(numel >= c.bucket_numel || bucket.tied || before.tied ||
                  before.chunk != bucket.chunk ||
                  (layout.shards_gradients() && (end(bucket) || end(before))));
      }
    }
  });
  CHECK(holds);
}

TEST_CASE(
    "buckets that are whole for a while are whole layers, which take turns with two windows") {
  const bool holds = rc::check([] {
    Case c = Case::random();
    c.pp = c.chunks = 1;
    c.zero = *rc::gen::element(2, 3);
    c.shards = *rc::gen::element(2, 3, 8);
    const std::vector<ParamRow> table = c.table();
    const ParamLayout layout = c.layouts().front();
    RC_ASSERT(layout.zero == c.zero);
    RC_ASSERT(layout.gradients_total() == layout.window_total());
    RC_ASSERT(layout.weights_total() == (c.zero == 3 ? layout.window_total() : layout.total));
    std::map<int, size_t> bucket_of;
    for (const ParamPlacement& param : layout.params) {
      const int layer = table[param.row].layer;
      const auto [found, first] = bucket_of.try_emplace(layer, param.bucket);
      RC_ASSERT(first || found->second == param.bucket);
      // Where it is read and written: inside of its bucket's window.
      const Bucket& bucket = layout.buckets[param.bucket];
      const Window& window = layout.windows[bucket.window];
      const int64_t at = layout.gradient_offset(param);
      RC_ASSERT(at - window.offset == param.offset - bucket.offset);
      RC_ASSERT(at + param.numel <= window.offset + window.numel);
      RC_ASSERT(layout.weight_offset(param) == (c.zero == 3 ? at : param.offset));
      // What is kept lies as the optimizer's state does.
      for (int shard = 0; shard < c.shards; ++shard) {
        const OwnedPart part = owned_part(layout, param, c.holder(shard));
        RC_ASSERT(part.gradient == part.state);
        RC_ASSERT(part.weight == (c.zero == 3 ? part.state : part.offset));
      }
    }
    int64_t at = 0;
    for (const Window& window : layout.windows) {
      RC_ASSERT(window.offset == at);
      RC_ASSERT(window.numel > 0);
      at += window.numel;
    }
    RC_ASSERT(at == layout.window_total());
    // The embedding may be read to the end when the head reads it too.
    const auto window_of = [&](int layer) { return layout.buckets[bucket_of.at(layer)].window; };
    const auto layers = static_cast<int>(c.shape.layers);
    RC_ASSERT((window_of(-1) == window_of(layers)) == !c.shape.tie_embeddings);
    for (int layer = 0; layer < layers; ++layer) {
      RC_ASSERT(window_of(layer) != window_of(-1));
      RC_ASSERT(window_of(layer) != window_of(layers));
      if (layer == 0) continue;
      const bool together = bucket_of.at(layer) == bucket_of.at(layer - 1);
      RC_ASSERT((window_of(layer) == window_of(layer - 1)) == together);
    }
  });
  CHECK(holds);
}

TEST_CASE("the shards of the optimizer state own every element once and cut no chunk of the norm") {
  const bool holds = rc::check([] {
    const Case c = Case::random();
    for (const ParamLayout& layout : c.layouts()) {
      RC_ASSERT(layout.shard_total() * c.shards == layout.total);
      std::vector<int64_t> state_end(static_cast<size_t>(c.shards), 0);
      for (const ParamPlacement& param : layout.params) {
        int64_t next = 0;
        for (int shard = 0; shard < c.shards; ++shard) {
          const OwnedPart part = owned_part(layout, param, c.holder(shard, c.copies - 1));
          if (part.count == 0) continue;
          RC_ASSERT(part.first == next);
          RC_ASSERT(part.offset == param.offset + part.first);
          if (part.first > 0) RC_ASSERT(part.offset % kSquaresChunk == 0);
          next += part.count;
          // In the state the parts of a shard follow each other as in the buffer.
          int64_t& end = state_end[static_cast<size_t>(shard)];
          RC_ASSERT(part.state >= end);
          end = part.state + part.count;
          RC_ASSERT(end <= layout.shard_total());
          // What all-gather puts together: the shard's run of the bucket.
          const Bucket& bucket = layout.buckets[param.bucket];
          RC_ASSERT(part.state - bucket.offset / c.shards ==
                    part.offset - bucket.offset - shard * (bucket.numel / c.shards));
        }
        RC_ASSERT(next == param.numel);
      }
    }
  });
  CHECK(holds);
}

TEST_CASE("of all ranks that hold an element one saves it") {
  const bool holds = rc::check([] {
    const Case c = Case::random();
    for (const ParamLayout& layout : c.layouts()) {
      for (size_t i = 0; i < layout.params.size(); ++i) {
        int64_t saved = 0;
        for (int copy = 0; copy < c.copies; ++copy) {
          for (int shard = 0; shard < c.shards; ++shard) {
            const Holders holders = c.holder(shard, copy);
            if (!rank_saves(layout, i, holders)) continue;
            saved += owned_part(layout, layout.params[i], holders).count;
          }
        }
        RC_ASSERT(saved == layout.params[i].numel);
      }
    }
  });
  CHECK(holds);
}

TEST_CASE("the chunks of the norm are the same for every pipeline and shards and bucket size") {
  const bool holds = rc::check([] {
    const Case c = Case::random();
    Case whole = c;
    whole.pp = whole.chunks = whole.shards = whole.copies = 1;
    whole.bucket_numel = int64_t{1} << 40;
    std::map<size_t, std::vector<int64_t>> expected;  // by row
    for (const ParamLayout& layout : whole.layouts()) {
      for (const ParamPlacement& param : layout.params) expected[param.row] = norm_borders(param);
    }
    for (const ParamLayout& layout : c.layouts()) {
      for (const ParamPlacement& param : layout.params) {
        const std::vector<int64_t> borders = norm_borders(param);
        RC_ASSERT(borders == expected[param.row]);
        RC_ASSERT(squares_count(param.offset, param.numel) ==
                  static_cast<int64_t>(borders.size()) + 1);
      }
    }
  });
  CHECK(holds);
  CHECK(squares_count(kSquaresChunk, 0) == 0);
  CHECK(squares_count(kSquaresChunk - 1, 2) == 2);
}
