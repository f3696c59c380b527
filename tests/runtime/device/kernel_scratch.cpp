// What the plan says that kernels take beside the arena, against what they take: training runs by
// the CUDA engine's kernels on the host, of models and layouts in which other ops take the most.
#include "runtime/device/kernel_scratch.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/plan/memory/gpu_memory.h"
#include "support/emulated_cuda.h"
#include "support/layouts.h"
#include "support/specs.h"

using namespace mtl;
using namespace mtl::test;
using kernel_scratch::Backward;

namespace {

constexpr std::optional<Backward> kBackwards[] = {Backward::measured, Backward::split,
                                                  std::nullopt};

class Counting final : public EmulatedCuda {
 public:
  explicit Counting(std::optional<Backward> hopper) : EmulatedCuda(2, hopper) {}
  void expect(const KernelNeeds& needs) override { expected = needs; }
  KernelNeeds expected;
  int64_t most = 0;

 private:
  void* scratch(int64_t bytes) override {
    most = std::max(most, bytes);
    return EmulatedCuda::scratch(bytes);
  }
};

// Trains a step, and compares on every rank.
void check_scratch(const TrainSpec& spec, const Layout& layout, std::optional<Backward> hopper) {
  constexpr int32_t kVocab = 64;
  const auto tokens = markov_tokens(4096, kVocab);
  std::map<int, Counting*> devices;
  std::mutex mutex;
  run_layout(
      spec, kVocab, layout,
      [&](RankContext& rank) {
        rank.trainer.initialise();
        const Sampler sampler(tokens->size(), spec.train.seq_len, SampleOrder::random, 1);
        rank.trainer.step(0, *tokens, sampler, {});
        const std::scoped_lock lock(mutex);
        const Counting& device = *devices.at(rank.rank);
        CAPTURE(rank.rank);
        CHECK(device.most == most_scratch(device.expected, hopper));
      },
      0, {},
      [&](int rank) {
        auto device = std::make_unique<Counting>(hopper);
        const std::scoped_lock lock(mutex);
        devices[rank] = device.get();
        return device;
      });
}

TrainSpec small_spec(int64_t heads, int64_t head_dim, int64_t seq) {
  TrainSpec spec = spec_with({.layers = 1,
                              .hidden = heads * head_dim,
                              .heads = heads,
                              .global_batch = 2,
                              .micro_batch = 1,
                              .seq_len = seq,
                              .steps = 1});
  spec.model.max_seq = seq;
  spec.model.ffn = 16;  // the block beside attention leaves it no room
  spec.precision.dtype = "bf16";
  return spec;
}

}  // namespace

TEST_CASE("kernel scratch: of attention's backward, by the kernel of the GPU") {
  for (const std::optional<Backward> hopper : kBackwards) {
    CAPTURE(hopper ? static_cast<int>(*hopper) : -1);
    TrainSpec spec = small_spec(2, 64, 128);
    check_scratch(spec, {}, hopper);
    use_llama_blocks(spec);
    spec.model.kv_heads = 1;
    spec.recompute.mode = "full";
    check_scratch(spec, {}, hopper);
    spec.recompute.mode = "none";
    spec.model.kv_heads = 2;
    check_scratch(spec, {.cp = 2}, hopper);
    check_scratch(spec, {.tp = 2}, hopper);
  }
  check_scratch(small_spec(1, 128, 96), {}, Backward::measured);
  check_scratch(small_spec(1, 128, 96), {}, Backward::split);
  // No sums with heads of 96, of 256, of other widths and in f32.
  check_scratch(small_spec(1, 96, 64), {}, Backward::measured);
  check_scratch(small_spec(1, 256, 64), {}, Backward::measured);
  check_scratch(small_spec(4, 16, 64), {}, Backward::measured);
}

TEST_CASE("kernel scratch: of the ops that take the most where attention has room") {
  // Biases of GPT-2's blocks, its tied embedding, norms of heads, experts, and stages of a
  // pipeline.
  TrainSpec spec = small_spec(2, 16, 256);
  check_scratch(spec, {.dp = 2}, Backward::measured);
  spec.model.layers = 2;
  spec.model.ffn = 256;
  check_scratch(spec, {.tp = 2, .pp = 2}, Backward::measured);
  use_llama_blocks(spec);
  spec.model.tie_embeddings = false;
  spec.model.qk_norm = true;
  check_scratch(spec, {.pp = 2}, Backward::measured);
  spec.model.qk_norm_whole = true;
  spec.model.norm.place = "output";
  check_scratch(spec, {.tp = 2}, Backward::measured);
  spec.model.qk_norm_whole = false;
  spec.model.norm.place = "input";
  spec.model.moe.experts = 4;
  check_scratch(spec, {.ep = 2}, Backward::measured);
  spec.precision.dtype = "fp8";
  check_scratch(spec, {}, Backward::measured);
  spec.precision.dtype = "fp32";
  check_scratch(spec, {.cp = 2}, Backward::measured);
  spec.model.moe.experts = 0;
  spec.model.qk_norm = false;
  spec.model.attention_sinks = true;
  check_scratch(spec, {.tp = 2}, Backward::measured);
  spec.model.attention_sinks = false;
  spec.model.head_dim = 24;
  spec.model.latent = {.kv_rank = 96, .q_rank = 160, .rope_dim = 8};
  check_scratch(spec, {.tp = 2}, Backward::measured);
}

TEST_CASE("kernel scratch: of the norm of all heads together") {
  for (const int64_t rows : {1, 32, 33, 9000}) {
    const int64_t columns = 24;
    KernelNeeds needs;
    needs.wide_norm_rows = rows;
    needs.wide_norm_cols = columns;
    Counting device({});
    std::vector<float> x(static_cast<size_t>(rows * columns), 1), raw = x;
    std::vector<float> squares(static_cast<size_t>(rows), 1), products = squares;
    std::vector<float> gamma(static_cast<size_t>(columns), 1), dgamma = gamma;
    const auto as_rows = [&](std::vector<float>& of) {
      return Tensor(of.data(), DType::f32, {rows, columns});
    };
    const auto as_vector = [](std::vector<float>& of) {
      return Tensor(of.data(), DType::f32, {static_cast<int64_t>(of.size())});
    };
    const WideNorm forward = {.x = as_rows(x),
                              .raw = as_rows(raw),
                              .first_column = 0,
                              .columns = columns,
                              .gamma = as_vector(gamma),
                              .squares = as_vector(squares),
                              .inverse = 1};
    const WideNormBackward backward = {.dx = as_rows(x),
                                       .raw = as_rows(raw),
                                       .first_column = 0,
                                       .columns = columns,
                                       .gamma = as_vector(gamma),
                                       .squares = as_vector(squares),
                                       .products = as_vector(products),
                                       .dgamma = as_vector(dgamma),
                                       .inverse = 1};
    device.wide_norm_squares(forward);
    device.wide_norm_forward(forward);
    device.wide_norm_products(backward);
    CHECK(device.most == 0);
    device.wide_norm_backward(backward);
    CHECK(device.most == most_scratch(needs, std::nullopt));
  }
}

TEST_CASE("kernel scratch: of the gradient of sinks") {
  for (const auto& [batch, seq, heads] :
       {std::array<int64_t, 3>{1, 4, 1}, {2, 33, 6}, {1, 5000, 4}, {70, 40, 64}}) {
    const int64_t dim = 1, rows = batch * seq;
    KernelNeeds needs;
    needs.attention = {batch, seq, heads, dim};
    needs.attention_room = int64_t{1} << 30;
    needs.sinks = true;
    std::vector<float> memory(static_cast<size_t>(rows * heads), 1);
    std::vector<float> sinks(static_cast<size_t>(heads)), dsinks = sinks;
    const Tensor matrix(memory.data(), DType::f32, {rows, heads});
    AttentionShape shape;
    shape.batch = batch;
    shape.seq = seq;
    shape.heads = shape.kv_heads = heads;
    shape.head_dim = dim;
    shape.sinks = Tensor(sinks.data(), DType::f32, {heads});
    Counting device({});
    device.attention_sinks_backward({.shape = shape,
                                     .out = matrix,
                                     .dout = matrix,
                                     .lse = matrix,
                                     .dsinks = Tensor(dsinks.data(), DType::f32, {heads})});
    CHECK(device.most == most_scratch(needs, std::nullopt));
    needs.sinks = false;
    CHECK(most_scratch(needs, std::nullopt) == 0);
  }
}

TEST_CASE("kernel scratch: Hopper's kernels, and their sums, are not for narrower values") {
  KernelNeeds needs;
  needs.compute = DType::bf16;
  needs.attention = {1, 64, 2, 128};
  const int64_t sums = most_scratch(needs, Backward::measured);
  needs.attention.value_dim = 128;
  CHECK(most_scratch(needs, Backward::measured) == sums);
  needs.attention.value_dim = 64;
  CHECK(most_scratch(needs, Backward::measured) == most_scratch(needs, std::nullopt));
  CHECK(most_scratch(needs, Backward::measured) < sums);
  needs.attention = {1, 64, 2, 192, 128};
  CHECK(most_scratch(needs, Backward::measured) == most_scratch(needs, std::nullopt));
}

TEST_CASE("kernel scratch: what attention's backward finds room for it takes nothing beside it") {
  // As in training: less than it needs by a byte is no room.
  const int64_t batch = 1, seq = 64, heads = 1, dim = 64;
  for (const std::optional<Backward> hopper : kBackwards) {
    const bool sums = hopper && kernel_scratch::adds_up(*hopper, dim);
    const int64_t bytes = kernel_scratch::attention_backward({batch, seq, heads, dim}, sums);
    KernelNeeds needs;
    needs.compute = DType::bf16;
    needs.attention = {batch, seq, heads, dim};
    for (const int64_t room : {bytes - 1, bytes}) {
      needs.attention_room = room;
      CHECK(most_scratch(needs, hopper) == (room < bytes ? bytes : 0));
      Counting device(hopper);
      std::vector<uint16_t> memory(static_cast<size_t>(seq * dim * 8) + 8);
      std::vector<float> lse(static_cast<size_t>(seq));
      std::vector<float> beside(static_cast<size_t>(room / 4 + 4));
      auto* at =
          reinterpret_cast<uint16_t*>((reinterpret_cast<uintptr_t>(memory.data()) + 15) / 16 * 16);
      const auto take = [&](int64_t columns) {
        const Tensor x(at, DType::bf16, {seq, columns});
        at += seq * columns;
        return x;
      };
      AttentionShape shape;
      shape.batch = batch;
      shape.seq = seq;
      shape.heads = shape.kv_heads = shape.total_heads = heads;
      shape.head_dim = dim;
      shape.scale = 0.125f;
      const Tensor qkv = take(3 * dim), out = take(dim), dout = take(dim), dqkv = take(3 * dim);
      const uintptr_t begin = (reinterpret_cast<uintptr_t>(beside.data()) + 15) / 16 * 16;
      const Tensor own(reinterpret_cast<void*>(begin), DType::u8, {room});
      device.attention_backward({.shape = shape,
                                 .qkv = qkv,
                                 .out = out,
                                 .lse = Tensor(lse.data(), DType::f32, {batch, heads, seq}),
                                 .dout = dout,
                                 .dqkv = dqkv,
                                 .room = own});
      CHECK(device.most == (room < bytes ? bytes : 0));
    }
  }
}
