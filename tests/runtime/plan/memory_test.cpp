#include "runtime/plan/memory/memory.h"

#include <algorithm>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/plan/memory_cases.h"

using namespace mtl;
using namespace mtl::test;

namespace memory_test {

TEST_CASE(
    "backward leaves gradients of what the linears of a layer made that makes no products again") {
  const std::vector<ChunkRange> whole = {{.layers = 12}};
  const MemoryNeeds needs = {
      .chunks = whole, .micro_batch = 2, .seq = 128, .later = 3, .compute = DType::bf16};
  constexpr int64_t kRows = 256, kStream = kRows * 768 * 2;
  // Stream and QKV; of an MLP the same and 4 h.
  constexpr int64_t kAttention = 4 * kStream, kMlp = 5 * kStream;
  CHECK(plan_of(shape_124m(), needs).later_bytes == 12 * (kAttention + kMlp));
  CHECK(plan_of(shape_neox(), needs).later_bytes == 12 * (kAttention + kMlp - kStream));
  const ModelShape moe = shape_moe();
  CHECK(plan_of(moe, needs).later_bytes ==
        12 * 2 *
            (kRows * (768 + (moe.heads + 2 * moe.kv_heads) * moe.head_dim + moe.experts) +
             kRows * moe.experts_per_token * (moe.mlp_parts() * moe.ffn + 768)));
  MemoryNeeds again = needs;
  again.recompute = {.mlp_activation = true, .norms = true};
  CHECK(plan_of(shape_124m(), again).later_bytes == 12 * (kAttention + kMlp));
  again.recompute = {.core_attention = 5};
  CHECK(plan_of(shape_124m(), again).later_bytes == 7 * (kAttention + kMlp));
  again.recompute = full(1);
  CHECK(plan_of(shape_124m(), again).later_bytes == 0);
  // And of sequence-parallel ranks the stream is divided.
  MemoryNeeds divided = needs;
  divided.tp = 2;
  divided.sequence_parallel = true;
  CHECK(plan_of(shape_124m(), divided).later_bytes == 12 * (kAttention + kMlp) / 2);
}

TEST_CASE("every token has a row for each of its experts and no more") {
  const MemoryPlan plan = plan_of(shape_moe(), {.micro_batch = 2, .seq = 128, .tp = 2});
  const auto shape = [&](const char* name) { return plan.find(name)->shape; };
  using Dims = std::vector<int64_t>;
  CHECK(shape("layer3.mlp.before_act") == Dims{512, 3072});
  CHECK(shape("layer3.mlp.activated") == Dims{512, 1536});
  CHECK(shape("layer3.mlp.logits") == Dims{256, 8});
  CHECK(shape("layer3.mlp.assignments") == Dims{512});
  CHECK(shape("mlp.token_rows") == Dims{512, 768});
  const MemoryPlan all = plan_of(shape_mixture(), {.micro_batch = 2, .seq = 128, .tp = 2});
  CHECK(all.find("layer3.mlp.shared_before_act")->shape == Dims{256, 768});
  CHECK(all.find("layer3.mlp.shared_activated")->shape == Dims{256, 384});
  CHECK(all.find("layer3.mlp.shared_gate")->shape == Dims{256, 1});
  CHECK(all.find("layer7.mlp.shared_before_act") == nullptr);
  CHECK(all.find("layer7.mlp.logits") == nullptr);
  CHECK(all.find("layer7.mlp.before_act")->shape == Dims{256, 1024});
  CHECK(all.find("mlp.dense_dactivated")->shape == Dims{256, 512});
  CHECK(all.find(kExpertBias)->shape == Dims{12, 8});
  CHECK(all.find(kExpertCounts)->dtype == DType::f64);
  CHECK(plan.find("layer3.mlp.shared_gate") == nullptr);
  CHECK(plan.find(kExpertBias) == nullptr);
  const MemoryPlan again =
      plan_of(shape_moe(), {.micro_batch = 2, .seq = 128, .recompute = {.mlp = true}});
  for (const char* name : {"before_act", "activated", "logits", "weights", "rows", "counts"}) {
    CHECK_FALSE(again.find(layer_buffer(0, "mlp.") + name)->in_slot);
  }
}

TEST_CASE("logits are there for so many tokens at a time, in parts that are alike") {
  CHECK(logits_rows(8192, 8192) == 8192);
  CHECK(logits_rows(8193, 8192) == 4224);  // two parts, in tiles of 128
  CHECK(logits_rows(65'536, 8192) == 8192);
  CHECK(logits_rows(20'000, 8192) == 6784);
  CHECK(logits_rows(60, 25) == 20);
  CHECK(logits_rows(1, 8192) == 1);
  CHECK(logits_rows(7, 1) == 1);
  CHECK(logits_rows(130, 129) == 65);
  using Dims = std::vector<int64_t>;
  const MemoryNeeds one{.micro_batch = 64, .seq = 1024, .compute = DType::bf16};
  const MemoryPlan plan = plan_of(shape_124m(), one);
  CHECK(plan.find("logits")->shape == Dims{8192, 50304});
  CHECK(plan.find("head.dnormed") == nullptr);  // takes the place of the norm's output
  MemoryNeeds two = one;
  two.tp = 2;
  two.logits_rows = 1000;
  const MemoryPlan divided = plan_of(shape_124m(), two);
  CHECK(divided.find("logits")->shape == Dims{1024, 50304 / 2});
  CHECK(divided.find("head.dnormed")->shape == Dims{65'536, 768});
}

TEST_CASE("phases and layers that are made again share their memory") {
  const MemoryPlan plan = plan_of(
      shape_124m(), {.micro_batch = 2, .seq = 128, .compute = DType::bf16, .recompute = full(4)});
  const auto shared = [&](const char* a, const char* b) {
    return plan.find(a)->offset == plan.find(b)->offset;
  };
  CHECK(shared("logits", "attn.dcontext"));
  CHECK(shared("logits", "mlp.dbefore_act"));
  CHECK(shared("logits", "squares"));
  CHECK(shared("layer0.attn.rstd", "layer4.attn.rstd"));
  CHECK(shared("layer3.mlp.normed", "layer11.mlp.normed"));
  CHECK(plan.find("layer4.attn.input")->in_slot);
  CHECK_FALSE(plan.find("layer5.attn.input")->in_slot);
}

TEST_CASE("blocks side by side have one input, and backward of the one waits for the other's") {
  const MemoryNeeds needs{.micro_batch = 2, .seq = 128, .compute = DType::bf16};
  ModelShape shape = shape_neox();
  const MemoryPlan parallel = plan_of(shape, needs);
  shape.parallel_residual = false;
  const MemoryPlan sequential = plan_of(shape, needs);
  constexpr int64_t kRows = 2 * 128;
  CHECK(parallel.find("layer3.mlp.input") == nullptr);
  CHECK(sequential.slot_bytes - parallel.slot_bytes == 12 * (kRows * 768 * 2 + 2 * kRows * 4));
  CHECK(parallel.find("mlp.dbefore_act")->offset ==
        parallel.find("attn.dcontext")->offset + kRows * 768 * 2);
  CHECK(sequential.find("mlp.dbefore_act")->offset == sequential.find("attn.dcontext")->offset);
}

TEST_CASE("a norm behind a block keeps what it is given, and one before it what it makes too") {
  const MemoryNeeds needs{.micro_batch = 2, .seq = 128, .compute = DType::bf16};
  const ModelShape before = shape_124m();
  ModelShape behind = before, both = before;
  behind.norm_place = NormPlace::output;
  both.norm_place = NormPlace::both;
  constexpr int64_t kNorm = 2 * 128 * 768 * 2, kStatistics = 2 * 2 * 128 * 4;
  const int64_t plain = plan_of(before, needs).slot_bytes;
  const MemoryPlan plan = plan_of(behind, needs);
  CHECK(plan.slot_bytes == plain);
  CHECK(plan_of(both, needs).slot_bytes == plain + 12 * 2 * (kNorm + kStatistics));
  CHECK(plan.find("layer3.attn.normed") == nullptr);
  CHECK(plan.find("layer3.mlp.rstd") == nullptr);
  MemoryNeeds again = needs;
  again.recompute.norms = true;  // of norms before blocks, that these have not
  CHECK(plan_of(behind, again).slot_bytes == plain);
}

TEST_CASE("recompute cuts exactly what its list says off the kept activations") {
  // GPT-2 124M, bf16, 2 sequences of 128: every buffer below is a multiple of 256 bytes.
  constexpr int64_t kRows = 2 * 128, kStream = kRows * 768 * 2;
  constexpr int64_t kLse = 12 * kRows * 4, kRowStatistics = 2 * 2 * kRows * 4;
  constexpr int64_t kActivated = 4 * kStream;
  // input, normed, qkv (3), context; input, normed, before and after the activation.
  constexpr int64_t kLayer = 6 * kStream + kLse + 2 * kStream + 2 * kActivated + kRowStatistics;
  const auto plan_with = [](const Recompute& recompute, int tp = 1) {
    return plan_of(shape_124m(), {.micro_batch = 2,
                                  .seq = 128,
                                  .slots = 3,
                                  .tp = tp,
                                  .compute = DType::bf16,
                                  .recompute = recompute});
  };
  const MemoryPlan none = plan_with({});
  const int64_t ends = none.slot_bytes - 12 * kLayer;  // of embedding and head
  CHECK(ends == 2 * kStream + 11 * kRows * 4);
  CHECK(none.bytes_of_category(MemoryCategory::activations) == 3 * none.slot_bytes);

  struct Case {
    std::string name;
    Recompute recompute;
    int64_t kept, again;  // in a slot for all layers, and once
  };
  const Case cases[] = {
      {"core_attn", {.core_attention = true}, 12 * (kLayer - kStream - kLse), kStream + kLse},
      {"mlp_act", {.mlp_activation = true}, 12 * (kLayer - kActivated), kActivated},
      {"norm", {.norms = true}, 12 * (kLayer - 2 * kStream), 2 * kStream},
      {"mlp", {.mlp = true}, 12 * (kLayer - kStream - 2 * kActivated), kStream + 2 * kActivated},
      {"norm and mlp",
       {.norms = true, .mlp = true},
       12 * (kLayer - 2 * kStream - 2 * kActivated),
       2 * kStream + 2 * kActivated},
      {"mlp_act of 7 layers", {.mlp_activation = 7}, 12 * kLayer - 7 * kActivated, kActivated},
      {"norm, mlp_act of 5 layers and mlp of 2",
       {.mlp_activation = 5, .norms = true, .mlp = 2},
       12 * (kLayer - 2 * kStream) - 5 * kActivated - 2 * kActivated,
       2 * kStream + 2 * kActivated},
      {"norm of one layer", {.norms = 1}, 12 * kLayer - 2 * kStream, 2 * kStream},
      {"full", full(1), 12 * kStream, kLayer - kStream},
      {"full in groups of 5", full(5), 3 * kStream, 5 * kLayer - kStream},
      {"block of 4",
       {.full = Recompute::Full::block, .layers = 4},
       4 * kStream + 8 * kLayer,
       kLayer - kStream},
  };
  for (const Case& c : cases) {
    CAPTURE(c.name);
    const MemoryPlan plan = plan_with(c.recompute);
    CHECK(plan.slot_bytes == ends + c.kept);
    CHECK(plan.bytes_of_category(MemoryCategory::activations) == 3 * (ends + c.kept) + c.again);
  }
  // Distributed over TP the kept input is divided, and made again whole.
  const MemoryPlan whole = plan_with(full(3), 4), divided = plan_with(full(3, true), 4);
  CHECK(whole.slot_bytes - divided.slot_bytes == 4 * (kStream - kStream / 4));
  CHECK(divided.bytes_of_category(MemoryCategory::activations) - 3 * divided.slot_bytes ==
        whole.bytes_of_category(MemoryCategory::activations) - 3 * whole.slot_bytes + kStream);
}

TEST_CASE("sequence parallelism divides what the stream keeps") {
  const ModelShape shape = shape_124m();
  MemoryNeeds needs{.micro_batch = 2, .seq = 64, .tp = 2};
  const MemoryPlan plain = plan_of(shape, needs);
  needs.sequence_parallel = true;
  const MemoryPlan divided = plan_of(shape, needs);
  for (const char* name : {"layer3.attn.input", "layer3.attn.normed", "layer3.mlp.rstd",
                           "head.input", "head.normed", "dresidual"}) {
    CAPTURE(std::string(name));
    CHECK(plain.find(name)->bytes == 2 * divided.find(name)->bytes);
  }
  for (const char* name : {"layer3.attn.qkv", "layer3.attn.context", "layer3.mlp.activated"}) {
    CAPTURE(std::string(name));
    CHECK(plain.find(name)->bytes == divided.find(name)->bytes);
  }
}

TEST_CASE("ZeRO-1 divides the optimizer's bytes and SGD has one moment") {
  const ModelShape shape = shape_124m();
  const ParamLayout one = layout_of(shape, 1);
  const size_t rows = shard_table(shape, false).size();
  const auto optimizer_bytes = [&](const ParamLayout& layout, DType compute, OptimizerKind kind) {
    const MemoryNeeds needs{
        .chunks = {{.layers = 12, .embedding = true, .head = true}},
        .micro_batch = 1,
        .seq = 64,
        .compute = compute,
        .optimizer = kind,
    };
    const MemoryPlan plan = memory_plan(shape, layout, needs, rows);
    CHECK(plan.find("grads")->shape == std::vector<int64_t>{layout.total});
    return plan.bytes_of_category(MemoryCategory::optimizer);
  };
  for (const int dp : {2, 3, 8}) {
    CAPTURE(dp);
    const ParamLayout divided = layout_of(shape, 1, dp);
    // At most one chunk of the norm for each shard and bucket.
    CHECK(divided.total - one.total < kSquaresChunk * dp);
    CHECK(divided.buckets.size() == 1);
    CHECK(optimizer_bytes(divided, DType::bf16, OptimizerKind::adamw) == 10 * divided.total / dp);
    CHECK(optimizer_bytes(divided, DType::f16, OptimizerKind::adamw) == 12 * divided.total / dp);
    CHECK(optimizer_bytes(divided, DType::f32, OptimizerKind::adam) == 8 * divided.total / dp);
  }
  CHECK(optimizer_bytes(one, DType::f32, OptimizerKind::sgd) == 4 * one.total);
  CHECK(optimizer_bytes(one, DType::bf16, OptimizerKind::sgd) == 6 * one.total);
}

TEST_CASE("bytes per parameter are those of mixed precision") {
  const ModelShape shape = shape_124m();
  const int64_t n = layout_of(shape, 1).total;
  const MemoryPlan bf16 = plan_of(shape, {.micro_batch = 1, .seq = 64, .compute = DType::bf16});
  CHECK(bf16.bytes_of_category(MemoryCategory::weights) == 2 * n);
  // And the rows of the tied embedding's input side, one for each token.
  CHECK(bf16.bytes_of_category(MemoryCategory::gradients) == 4 * n + 64 * 768 * 4 + 256);
  // Of the masters the half that the weights lack.
  CHECK(bf16.bytes_of_category(MemoryCategory::optimizer) == 10 * n);
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
  const MemoryPlan plan =
      plan_of(shape_124m(), {.micro_batch = 1, .seq = 512, .training = false, .context = 1024});
  CHECK(plan.find("grads") == nullptr);
  CHECK(plan.bytes_of_category(MemoryCategory::optimizer) == 0);
  CHECK(plan.find("logits")->shape == std::vector<int64_t>{1, 50304});
}

TEST_CASE(
    "generation keeps of a layer what later tokens read, and one layer's memory for the rest") {
  for (const ModelShape& shape : {shape_124m(), shape_moe()}) {
    const MemoryPlan plan = plan_of(shape, {.seq = 64, .training = false, .context = 512});
    const auto range = [&](int64_t layer, const char* name) {
      return range_of(*plan.find(layer_buffer(layer, name)));
    };
    CHECK_FALSE((range(3, "attn.qkv") && range(4, "attn.qkv")));
    CHECK(plan.find(layer_buffer(3, "attn.qkv"))->shape[0] == 512);
    CHECK(plan.find(layer_buffer(3, "attn.input"))->shape[0] == 64);
    for (const char* name : {"attn.input", "attn.context", "mlp.input", "mlp.before_act"}) {
      CAPTURE(name);
      CHECK(range(3, name).begin == range(4, name).begin);
      CHECK_FALSE((range(3, name) && range(4, "attn.qkv")));
    }
    // Positions that no token has are not in the table.
    if (shape.position == PositionType::rope) {
      CHECK(plan.find("rope")->shape == std::vector<int64_t>{512, 64});
    }
  }
}

}  // namespace memory_test
