#include "runtime/plan/memory.h"

#include <doctest/doctest.h>

using namespace mtl;

namespace {

ModelShape shape_124m() {
  ModelShape shape;
  shape.layers = 12;
  shape.heads = shape.kv_heads = 12;
  shape.head_dim = 64;
  shape.hidden = 768;
  shape.ffn = 3072;
  shape.vocab = 50257;
  shape.vocab_pad_to = 128;
  shape.padded_vocab = 50304;
  shape.max_seq = 1024;
  return shape;
}

ParamLayout layout_of(const ModelShape& shape, int tp) {
  GridSizes sizes;
  sizes[Axis::tp] = tp;
  const ChunkRange everything{.layers = shape.layers, .embedding = true, .head = true};
  return param_layout(shard_table(shape, false), sizes, {everything}, shape.layers, 1, 1 << 30,
                      false);
}

MemoryPlan plan_of(const ModelShape& shape, MemoryNeeds needs) {
  needs.chunks = {{.layers = shape.layers, .embedding = true, .head = true}};
  return memory_plan(shape, layout_of(shape, needs.tp), needs, shard_table(shape, false).size());
}

}  // namespace

TEST_CASE("only scratch of different phases overlaps") {
  const MemoryPlan plan =
      plan_of(shape_124m(), {.micro_batch = 2, .seq = 128, .tp = 2, .compute = DType::bf16});
  auto overlap = [](const BufferPlan& a, const BufferPlan& b) {
    return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
  };
  for (const BufferPlan& a : plan.buffers) {
    CHECK(a.offset % 256 == 0);
    CHECK(a.offset + a.bytes <= plan.total_bytes);
    for (const BufferPlan& b : plan.buffers) {
      if (&a == &b || !overlap(a, b)) continue;
      CAPTURE(a.name);
      CAPTURE(b.name);
      CHECK(a.category == MemoryCategory::scratch);
      CHECK(b.category == MemoryCategory::scratch);
    }
  }
  CHECK(overlap(*plan.find("logits"), *plan.find("attn.dqkv")));
  CHECK_FALSE(overlap(*plan.find("attn.dcontext"), *plan.find("attn.dqkv")));
  CHECK_FALSE(overlap(*plan.find("logits"), *plan.find("dresidual")));
}

TEST_CASE("bytes per parameter are those of mixed precision") {
  const ModelShape shape = shape_124m();
  const int64_t n = layout_of(shape, 1).total;
  const MemoryPlan bf16 = plan_of(shape, {.micro_batch = 1, .seq = 64, .compute = DType::bf16});
  CHECK(bf16.bytes_of_category(MemoryCategory::weights) == 2 * n);
  // And the rows of the tied embedding's input side, one for each token.
  CHECK(bf16.bytes_of_category(MemoryCategory::gradients) == 4 * n + 64 * 768 * 4 + 256);
  CHECK(bf16.bytes_of_category(MemoryCategory::optimizer) == 12 * n);
  const MemoryPlan f32 = plan_of(shape, {.micro_batch = 1, .seq = 64});
  CHECK(f32.bytes_of_category(MemoryCategory::weights) == 4 * n);
  CHECK(f32.bytes_of_category(MemoryCategory::optimizer) == 8 * n);
  CHECK(f32.find("master") == nullptr);
}

TEST_CASE("tensor parallelism divides what it splits") {
  const ModelShape shape = shape_124m();
  const MemoryNeeds one{.micro_batch = 2, .seq = 64}, two{.micro_batch = 2, .seq = 64, .tp = 2};
  const MemoryPlan a = plan_of(shape, one), b = plan_of(shape, two);
  for (const char* name : {"layer3.attn.qkv", "layer3.mlp.activated", "logits", "attn.dqkv"}) {
    CAPTURE(name);
    CHECK(a.find(name)->bytes == 2 * b.find(name)->bytes);
  }
  CHECK(a.find("layer3.attn.normed")->bytes == b.find("layer3.attn.normed")->bytes);
}

TEST_CASE("generation plans neither gradients nor optimizer") {
  const MemoryPlan plan = plan_of(shape_124m(), {.micro_batch = 1, .seq = 1024, .training = false});
  CHECK(plan.find("grads") == nullptr);
  CHECK(plan.bytes_of_category(MemoryCategory::optimizer) == 0);
  CHECK(plan.find("logits")->shape == std::vector<int64_t>{1, 50304});
}
