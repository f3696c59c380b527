// The host is not in the way of a step: it enqueues all of it, and then asks once.
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include <doctest/doctest.h>

#include "support/fake_gpu.h"
#include "support/layouts.h"
#include "support/specs.h"

using namespace mtl;
using namespace mtl::test;

namespace step_waits_test {

namespace {

constexpr int32_t kVocab = 61;

TrainSpec spec_of(const std::string& dtype, const std::string& optimizer) {
  TrainSpec spec = spec_with({.layers = 3, .global_batch = 6, .steps = 10});
  spec.precision.dtype = dtype;
  spec.model.dropout.hidden = 0.1;
  spec.optimizer.type = optimizer;
  return spec;
}

// body(trainer, step) on one rank on a GPU that counts what the host asks for.
void on_one_gpu(const TrainSpec& spec,
                const std::function<void(Trainer&, FakeGpu&, const TokenWindows&)>& body) {
  const auto tokens = markov_tokens(2000, kVocab);
  const Sampler sampler(tokens->size(), spec.train.seq_len, SampleOrder::random, 3);
  const TokenWindows samples(*tokens, sampler);
  FakeGpu gpu(When::late);
  run_layout(
      spec, kVocab, {}, [&](RankContext& rank) { body(rank.trainer, gpu, samples); }, 0, {},
      [&](int) { return make_fake_device(gpu); });
}

}  // namespace

TEST_CASE("a step asks the device once and waits for nothing else") {
  for (const char* dtype : {"fp32", "bf16", "fp16"}) {
    for (const char* optimizer : {"adamw", "sgd"}) {
      CAPTURE(dtype);
      CAPTURE(optimizer);
      on_one_gpu(spec_of(dtype, optimizer),
                 [](Trainer& trainer, FakeGpu& gpu, const TokenWindows& samples) {
                   trainer.initialise();
                   trainer.step(0, samples, {});
                   for (int64_t step = 1; step < 4; ++step) {
                     const FakeGpu::Seen before = gpu.seen;
                     CHECK_FALSE(trainer.step(step, samples, {}).skipped);
                     CHECK(gpu.seen.copies_to_host == before.copies_to_host + 1);
                     CHECK(gpu.seen.waits == before.waits);
                     CHECK(gpu.seen.ops > before.ops);
                   }
                 });
    }
  }
}

TEST_CASE("the update is a few ops however many parameters there are") {
  const auto ops_of_step = [](int64_t layers) {
    TrainSpec spec = spec_of("bf16", "adamw");
    spec.model.layers = layers;
    int64_t passes = 0, all = 0;
    on_one_gpu(spec, [&](Trainer& trainer, FakeGpu& gpu, const TokenWindows& samples) {
      trainer.initialise();
      const int64_t before = gpu.seen.ops;
      trainer.gradients(0, samples);
      passes = gpu.seen.ops;
      trainer.step(0, samples, {});
      all = gpu.seen.ops - passes;
      passes -= before;
    });
    return all - passes;  // both make the norm
  };
  CHECK(ops_of_step(1) == 1);
  CHECK(ops_of_step(6) == 1);
}

TEST_CASE("a step that is left out is seen by the device alone and changes no bit") {
  TrainSpec spec = spec_of("bf16", "adamw");
  spec.health.nan = "skip";
  spec.model.dropout = {};
  on_one_gpu(spec, [](Trainer& trainer, FakeGpu& gpu, const TokenWindows& samples) {
    trainer.initialise();
    trainer.step(0, samples, {});
    // One layer's weights that are no numbers make the loss none.
    set_masters(trainer, [](const ParamRow& row, int64_t) {
      return row.layer == 1 ? std::numeric_limits<float>::quiet_NaN() : 0.01f;
    });
    const auto all = [&] {
      std::map<std::string, GlobalTensors> state;
      collect(trainer, Which::master, state["master"]);
      collect_moments(trainer, state);
      std::vector<uint32_t> bits;
      for (const auto& [kind, tensors] : state) {
        for (const auto& [name, values] : tensors) {
          for (const float x : values) bits.push_back(std::bit_cast<uint32_t>(x));
        }
      }
      return bits;
    };
    const std::vector<uint32_t> before = all();
    const FakeGpu::Seen seen = gpu.seen;
    const StepResult result = trainer.step(1, samples, {});
    CHECK(result.skipped);
    CHECK(std::isnan(result.loss));
    CHECK(gpu.seen.copies_to_host == seen.copies_to_host + 1);
    CHECK(gpu.seen.waits == seen.waits);
    const bool unchanged = before == all();
    CHECK(unchanged);
  });
}

}  // namespace step_waits_test
