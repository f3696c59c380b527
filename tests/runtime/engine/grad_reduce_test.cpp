// Gradients that travel between replicas in bf16 (precision.grad_reduce).
#include <doctest/doctest.h>

#include "runtime/comm/tcp/tcp_world.h"
#include "support/guarded_device.h"
#include "support/layouts.h"
#include "support/specs.h"

using namespace mtl;
using namespace mtl::test;

namespace grad_reduce_test {

namespace {

constexpr int32_t kVocab = 61;

// Wide enough that a bucket has more gradients than are rounded aside (kRoundedAside).
TrainSpec spec_of(const std::string& grad_reduce) {
  TrainSpec spec = spec_with({.layers = 3, .hidden = 96, .micro_batch = 1, .steps = 100});
  spec.train.seed = 5;
  spec.lr.max = 1e-3;
  spec.lr.warmup = 10;
  spec.precision.grad_reduce = grad_reduce;
  return spec;
}

GlobalTensors first_gradients(const TrainSpec& spec, Layout layout, const TokenSource& tokens) {
  const Sampler sampler(tokens.size(), spec.train.seq_len, SampleOrder::sequential, 5);
  GlobalTensors gradients;
  run_layout(
      spec, kVocab, layout,
      [&](RankContext& rank) {
        rank.trainer.initialise();
        rank.trainer.gradients(0, tokens, sampler);
        collect(rank.trainer, Which::grad, gradients);
      },
      0, {},
      [](int) { return std::make_unique<GuardedDevice>(true, GuardedDevice::Memory::shared); });
  return gradients;
}

struct Outcome {
  std::vector<double> losses;
  GlobalTensors masters;
  bool operator==(const Outcome&) const = default;
};
Outcome train(const TrainSpec& spec, Layout layout, int64_t steps,
              const MakeWorld& make_world = {}) {
  const auto tokens = markov_tokens(20'000, kVocab);
  const Sampler sampler(tokens->size(), spec.train.seq_len, SampleOrder::random, 5);
  Outcome outcome;
  run_layout(
      spec, kVocab, layout,
      [&](RankContext& rank) {
        rank.trainer.initialise();
        for (int64_t step = 0; step < steps; ++step) {
          const double loss = rank.trainer.step(step, *tokens, sampler, {}).loss;
          if (rank.rank == 0) outcome.losses.push_back(loss);
        }
        collect(rank.trainer, Which::master, outcome.masters);
      },
      0, make_world);
  return outcome;
}

std::vector<float> in_bf16(std::vector<float> x) {
  CpuDevice cpu(1, cpu_isa());
  const auto n = static_cast<int64_t>(x.size());
  std::vector<uint16_t> rounded(x.size());
  const Tensor wide(x.data(), DType::f32, {n}), narrow(rounded.data(), DType::bf16, {n});
  cpu.cast(wide, narrow);
  cpu.cast(narrow, wide);
  return x;
}

}  // namespace

TEST_CASE("gradients in bf16: of equal replicas each element is rounded once") {
  // All sequences are the same, and so are the gradients of all micro-batches: what travels is a
  // power of two times one of them, and every sum of these is exact.
  const SyntheticTokens same(1601, [](int64_t i) { return static_cast<int32_t>(i % 16 * 3); });
  struct Case {
    Layout layout;
    int zero;
    int64_t experts = 0;
  };
  for (const Case& one : {Case{{.dp = 2}, 1},
                          {{.dp = 4}, 1},
                          {{.dp = 8}, 1},
                          {{.dp = 2}, 2},
                          {{.dp = 4}, 3},
                          {{.tp = 2, .dp = 2}, 1},
                          {{.tp = 2, .dp = 2}, 3},
                          {{.dp = 4, .pp = 3}, 1},
                          {{.dp = 2, .pp = 3}, 1},
                          {{.dp = 4, .zero_ranks = 2}, 1},
                          {{.dp = 4, .zero_ranks = 2}, 2},
                          {{.tp = 2, .dp = 4, .zero_ranks = 4}, 3},
                          {{.dp = 2, .ep = 2}, 1, 4}}) {
    CAPTURE(one.layout.tp);
    CAPTURE(one.layout.dp);
    CAPTURE(one.layout.pp);
    CAPTURE(one.layout.ep);
    CAPTURE(one.layout.zero_ranks);
    CAPTURE(one.zero);
    TrainSpec spec = spec_of("fp32");
    spec.parallel.zero = one.zero;
    // In windows the gradients of every micro-batch are rounded.
    if (one.zero > 1) spec.train.global_batch = one.layout.dp;
    if (one.experts > 0) {
      spec.model.moe = {.experts = one.experts, .topk = 2};
      spec.model.activation = "swiglu";
      spec.model.bias = false;
    }
    const GlobalTensors whole = first_gradients(spec, one.layout, same);
    spec.precision.grad_reduce = "bf16";
    const GlobalTensors narrow = first_gradients(spec, one.layout, same);
    REQUIRE(narrow.size() == whole.size());
    for (const auto& [name, gradient] : whole) {
      CAPTURE(name);
      CHECK(narrow.at(name) == in_bf16(gradient));
    }
    CHECK(narrow != whole);
  }
}

TEST_CASE("gradients in bf16: the same bits however they travel") {
  TrainSpec spec = spec_of("bf16");
  spec.train.global_batch = 4;
  const Outcome first = train(spec, {.dp = 4}, 5);
  // One micro-batch in a step: nothing is rounded more often in windows.
  for (const int zero : {1, 2, 3}) {
    for (const bool overlap : {true, false}) {
      CAPTURE(zero);
      CAPTURE(overlap);
      spec.parallel.zero = zero;
      spec.parallel.overlap.grad_reduce = overlap;
      spec.parallel.overlap.param_gather = overlap ? "auto" : "false";
      CHECK(train(spec, {.dp = 4}, 5) == first);
    }
  }
  spec = spec_of("bf16");
  spec.train.global_batch = 4;
  spec.parallel.bucket_mb = 0.1;
  CHECK(train(spec, {.dp = 4}, 5) == first);
  const auto over_tcp = [](Store& store, int rank, int size) -> std::unique_ptr<CommWorld> {
    return make_tcp_world(store, {.rank = rank, .size = size, .token = "secret"});
  };
  CHECK(train(spec, {.dp = 4}, 5, over_tcp) == first);
}

TEST_CASE("gradients in bf16: learns what gradients in fp32 do") {
  for (const Layout layout : {Layout{.dp = 2}, {.dp = 3, .cp = 2}}) {
    for (const int zero : {1, 3}) {
      CAPTURE(layout.cp);
      CAPTURE(zero);
      TrainSpec spec = spec_of("fp32");
      spec.train.global_batch = 6;
      spec.parallel.zero = zero;
      const Outcome whole = train(spec, layout, 100);
      spec.precision.grad_reduce = "bf16";
      const Outcome narrow = train(spec, layout, 100);
      REQUIRE(narrow.losses.size() == whole.losses.size());
      CHECK(narrow.losses.front() == whole.losses.front());
      CHECK(whole.losses.back() < whole.losses.front() - 0.5);
      for (size_t step = 0; step < whole.losses.size(); ++step) {
        CAPTURE(step);
        REQUIRE(narrow.losses[step] == doctest::Approx(whole.losses[step]).epsilon(0.01));
      }
    }
  }
}

}  // namespace grad_reduce_test
