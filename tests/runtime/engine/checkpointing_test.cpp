// Saving and loading a trainer: bit-identical resume, and any layout from any layout.
#include "runtime/engine/checkpointing.h"

#include <filesystem>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "runtime/checkpoint/checkpoint.h"
#include "support/layouts.h"
#include "support/temp_dir.h"

using namespace mtl;
using namespace mtl::test;

namespace {

namespace fs = std::filesystem;

TrainSpec spec_with(const std::string& dtype) {
  TrainSpec spec;
  spec.model.layers = 2;
  spec.model.hidden = 32;
  spec.model.heads = 4;
  spec.model.dropout = {0.1, 0.1};
  spec.train.global_batch = 8;
  spec.train.seq_len = 16;
  spec.train.steps = 20;
  spec.precision.dtype = dtype;
  return spec;
}

}  // namespace

TEST_CASE("resume in the same layout is bit-identical to the uninterrupted run") {
  const TempDir folder;
  const auto source = markov_tokens(5'000, 65);
  for (const char* dtype : {"fp32", "bf16"}) {
    const TrainSpec spec = spec_with(dtype);
    const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, 1);
    const fs::path dir = folder.path() / dtype / "checkpoints" / "step-00000010";
    GlobalTensors uninterrupted, resumed;
    std::vector<double> losses, resumed_losses;
    run_layout(spec, 65, {2, 2}, [&](RankContext& rank) {
      rank.trainer.initialise();
      for (int64_t step = 0; step < 20; ++step) {
        const double loss = rank.trainer.step(step, *source, sampler, {}).loss;
        if (step >= 10 && rank.rank == 0) losses.push_back(loss);
        if (step == 9) save_checkpoint(dir, {{"step", 10}}, 0, rank.trainer, rank.plan, rank.world);
      }
      collect(rank.trainer, Which::master, uninterrupted);
    });
    run_layout(spec, 65, {2, 2}, [&](RankContext& rank) {
      load_checkpoint(dir, rank.trainer);
      for (int64_t step = 10; step < 20; ++step) {
        const double loss = rank.trainer.step(step, *source, sampler, {}).loss;
        if (rank.rank == 0) resumed_losses.push_back(loss);
      }
      collect(rank.trainer, Which::master, resumed);
    });
    CHECK(resumed_losses == losses);
    CHECK(resumed == uninterrupted);
  }
}

TEST_CASE("any layout loads what any layout saved") {
  const TempDir folder;
  const auto source = markov_tokens(5'000, 65);
  const TrainSpec spec = spec_with("fp32");
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, 1);
  const Layout layouts[] = {{1, 1}, {2, 1}, {1, 2}, {4, 2}};
  int number = 0;
  for (const Layout from : layouts) {
    const fs::path dir = folder.path() / "any" / ("step-0000000" + std::to_string(++number));
    GlobalTensors saved;
    double next_loss = 0;
    run_layout(spec, 65, from, [&](RankContext& rank) {
      rank.trainer.initialise();
      for (int64_t step = 0; step < 3; ++step) rank.trainer.step(step, *source, sampler, {});
      save_checkpoint(dir, {{"step", 3}}, 0, rank.trainer, rank.plan, rank.world);
      collect(rank.trainer, Which::master, saved);
      rank.trainer.step(3, *source, sampler, {});
      const double loss = rank.trainer.step(4, *source, sampler, {}).loss;
      if (rank.rank == 0) next_loss = loss;
    });
    for (const Layout to : layouts) {
      CAPTURE(from.tp);
      CAPTURE(from.dp);
      CAPTURE(to.tp);
      CAPTURE(to.dp);
      GlobalTensors loaded;
      double loss_after = 0;
      run_layout(spec, 65, to, [&](RankContext& rank) {
        load_checkpoint(dir, rank.trainer);
        collect(rank.trainer, Which::master, loaded);
        rank.trainer.step(3, *source, sampler, {});
        const double loss = rank.trainer.step(4, *source, sampler, {}).loss;
        if (rank.rank == 0) loss_after = loss;
      });
      CHECK(loaded == saved);
      // The second step after loading depends on the moments too.
      CHECK(loss_after == doctest::Approx(next_loss).epsilon(1e-5));
    }
  }
}
