// optimizer.offload: the state on the host trains the same model to the bit, and lies where it is
// planned. (Checkpoints of it: checkpointing_test.cpp.)
#include <doctest/doctest.h>

#include "support/guarded_device.h"
#include "support/layouts.h"
#include "support/sanitized.h"
#include "support/specs.h"

using namespace mtl;
using namespace mtl::test;

namespace offload_test {

namespace {

constexpr int32_t kVocab = 64;
constexpr int kSteps = kSanitized ? 2 : 4;

TrainSpec small(const char* dtype) {
  TrainSpec spec = spec_with({.steps = 10});
  spec.lr.max = 1e-2;
  spec.precision.dtype = dtype;
  return spec;
}

struct Trained {
  GlobalTensors masters;
  std::map<std::string, GlobalTensors> moments;
  std::vector<double> losses;
  bool operator==(const Trained&) const = default;
};

Trained train(TrainSpec spec, const Layout& layout, bool offload, int steps,
              const MakeDevice& make_device = {}) {
  spec.optimizer.offload = offload ? "cpu" : "none";
  const auto tokens = markov_tokens(4096, kVocab);
  Trained result;
  run_layout(
      spec, kVocab, layout,
      [&](RankContext& rank) {
        rank.trainer.initialise();
        const Sampler sampler(tokens->size(), rank.plan.seq, SampleOrder::random, 7);
        for (int64_t step = 0; step < steps; ++step) {
          const double loss = rank.trainer.step(step, *tokens, sampler, {}).loss;
          if (rank.rank == 0) result.losses.push_back(loss);
        }
        collect(rank.trainer, Which::master, result.masters);
        collect_moments(rank.trainer, result.moments);
      },
      0, {}, make_device);
  return result;
}

}  // namespace

TEST_CASE("offloaded state trains the same model to the bit, in any layout") {
  for (const char* dtype : {"fp32", "bf16", "fp16"}) {
    for (const std::string optimizer : {"adamw", "sgd"}) {
      // SGD's state is a part of AdamW's.
      if (kSanitized && optimizer == "sgd" && std::string(dtype) != "bf16") continue;
      for (const int zero : {0, 1, 2, 3}) {
        for (const Layout& layout : {Layout{}, Layout{.dp = 2}, Layout{.tp = 2, .dp = 2},
                                     Layout{.dp = 4, .zero_ranks = 2}, Layout{.dp = 2, .pp = 2}}) {
          if (zero > 1 && layout.pp > 1) continue;
          if (zero == 0 && layout.zero_ranks > 0) continue;
          CAPTURE(std::string(dtype));
          CAPTURE(optimizer);
          CAPTURE(zero);
          CAPTURE(layout.tp);
          CAPTURE(layout.dp);
          CAPTURE(layout.pp);
          TrainSpec spec = small(dtype);
          spec.optimizer.type = optimizer;
          spec.parallel.zero = zero;
          CHECK(train(spec, layout, true, kSteps) == train(spec, layout, false, kSteps));
        }
      }
    }
  }
}

TEST_CASE("offloaded state lies in memory of the host, where it is planned") {
  for (const char* dtype : {"fp32", "bf16"}) {
    TrainSpec spec = small(dtype);
    spec.optimizer.offload = "cpu";
    const auto check = [&](RankContext& rank) {
      rank.trainer.initialise();
      auto& device = dynamic_cast<GuardedDevice&>(rank.trainer.device());
      const ParameterState first = rank.trainer.state().front();
      const MemoryPlan& memory = rank.plan.stages[0].memory;
      // Of f32 the weights are the masters.
      const bool parts = rank.plan.compute != DType::f32;
      const void* const begin = parts ? first.master.rests.data : first.moments[0].second.data;
      CHECK(device.on_host(begin) == memory.host_bytes);
      CHECK(device.on_host(first.grad.data) == 0);
    };
    run_layout(spec, kVocab, {}, check, 0, {},
               [](int) { return std::make_unique<GuardedDevice>(); });
    // And trains there as elsewhere.
    const auto guarded = [](int) { return std::make_unique<GuardedDevice>(); };
    CHECK(train(small(dtype), {}, true, 3, guarded) == train(small(dtype), {}, false, 3));
  }
}

}  // namespace offload_test
