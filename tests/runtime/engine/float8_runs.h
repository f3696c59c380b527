// Small runs in FP8, and in bf16 beside them.
#pragma once

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "support/guarded_device.h"
#include "support/layouts.h"
#include "support/sanitized.h"
#include "support/specs.h"

namespace float8_test {

using namespace mtl;
using namespace mtl::test;

inline constexpr int32_t kVocab = 65;
inline constexpr int64_t kBoundSteps = kSanitized ? 3 : 12;  // of what is compared within a bound
inline constexpr int64_t kBitSteps = kSanitized ? 2 : 6;     // of what is compared bit by bit

inline TrainSpec spec_of(bool llama, const char* dtype) {
  TrainSpec spec = spec_with({.layers = 3, .hidden = 64, .seq_len = 32, .steps = 200});
  if (llama) {
    spec.model.kv_heads = 2;
    spec.model.ffn = 96;
    use_llama_blocks(spec);
    spec.model.tie_embeddings = false;
  }
  spec.train.seed = 7;
  spec.lr.max = 1e-3;
  spec.lr.min = 1e-4;
  spec.lr.warmup = 10;
  spec.precision.dtype = dtype;
  return spec;
}

struct Run {
  std::vector<double> losses, norms;
  double valid = 0;
  GlobalTensors gradients, master;
  bool operator==(const Run&) const = default;
};

inline Run train(const TrainSpec& spec, Layout layout, int64_t steps) {
  const auto source = markov_tokens(20'000, kVocab);
  const auto valid = markov_tokens(1'000, kVocab);
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, spec.train.seed);
  Run run;
  run_layout(spec, kVocab, layout, [&](RankContext& rank) {
    rank.trainer.initialise();
    rank.trainer.gradients(0, *source, sampler);
    collect(rank.trainer, Which::grad, run.gradients);
    for (int64_t step = 0; step < steps; ++step) {
      const StepResult done = rank.trainer.step(step, *source, sampler, {});
      if (rank.rank != 0) continue;
      run.losses.push_back(done.loss);
      run.norms.push_back(done.grad_norm);
    }
    const double loss = rank.trainer.evaluate(*valid, 0);
    if (rank.rank == 0) run.valid = loss;
    collect(rank.trainer, Which::master, run.master);
  });
  return run;
}

inline double mean_of_last(const std::vector<double>& losses, size_t count) {
  return std::accumulate(losses.end() - static_cast<ptrdiff_t>(count), losses.end(), 0.0) /
         static_cast<double>(count);
}

// What a rank's device was asked for in the gradients of a step.
struct Asked {
  int64_t amaxes = 0;  // passes over tensors for their largest magnitude
  int64_t quantized = 0, wrong_amaxes = 0, wrong_row_amaxes = 0, small_amaxes = 0;
};
inline std::vector<Asked> asked_by(const TrainSpec& spec, Layout layout = {}) {
  const auto source = markov_tokens(20'000, kVocab);
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, spec.train.seed);
  std::vector<const GuardedDevice*> devices(static_cast<size_t>(layout.world()));
  std::vector<Asked> asked(devices.size());
  const MakeDevice make = [&](int rank) {
    auto made = std::make_unique<GuardedDevice>(
        true, layout.world() > 1 ? GuardedDevice::Memory::shared : GuardedDevice::Memory::guarded);
    devices[static_cast<size_t>(rank)] = made.get();
    return made;
  };
  const auto body = [&](RankContext& rank) {
    const auto at = static_cast<size_t>(rank.rank);
    rank.trainer.initialise();
    rank.trainer.gradients(0, *source, sampler);
    const GuardedDevice& device = *devices[at];
    asked[at] = {device.amaxes(), device.quantized(), device.wrong_amaxes(),
                 device.wrong_row_amaxes(), device.small_amaxes()};
  };
  run_layout(spec, kVocab, layout, body, 0, {}, make);
  return asked;
}

}  // namespace float8_test
