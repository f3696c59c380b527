// Dynamic loss scaling: the state machine, and what an overflow does to a run in fp16.
#include "runtime/engine/loss_scale.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "runtime/engine/checkpointing.h"
#include "runtime/engine/lr.h"
#include "support/layouts.h"
#include "support/save_checkpoint.h"
#include "support/specs.h"
#include "support/temp_dir.h"

using namespace mtl;
using namespace mtl::test;

namespace loss_scale_test {

namespace {

namespace fs = std::filesystem;

constexpr int32_t kVocab = 61;

TrainSpec spec_of(const std::string& dtype) {
  TrainSpec spec = spec_with({.steps = 60});
  spec.train.seed = 5;
  spec.precision.dtype = dtype;
  spec.lr.max = 3e-3;
  spec.lr.warmup = 5;
  return spec;
}

// Nothing that fp16 can hold survives being multiplied by this.
TrainSpec absurd_spec() {
  TrainSpec spec = spec_of("fp16");
  spec.precision.loss_scale.initial = 0x1p36;
  return spec;
}

struct Run {
  std::vector<StepResult> steps;
  GlobalTensors masters;
};

Run train(const TrainSpec& spec, Layout layout, int64_t first, int64_t end) {
  const auto source = markov_tokens(20'000, kVocab);
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, spec.train.seed);
  Run run;
  run_layout(spec, kVocab, layout, [&](RankContext& rank) {
    rank.trainer.initialise();
    for (int64_t step = first; step < end; ++step) {
      const StepResult result = rank.trainer.step(step, *source, sampler, {});
      if (rank.rank == 0) run.steps.push_back(result);
    }
    collect(rank.trainer, Which::master, run.masters);
  });
  return run;
}

size_t skipped_at_first(const Run& run) {
  size_t skipped = 0;
  while (skipped < run.steps.size() && run.steps[skipped].skipped) ++skipped;
  return skipped;
}

}  // namespace

TEST_CASE("the scale halves when overflows use up the hysteresis and doubles after a window") {
  LossScale scale({.initial = 1024, .min = 128, .window = 3, .hysteresis = 2}, true);
  const auto after = [&](bool overflow) {
    scale.step_done(overflow);
    return scale.value();
  };
  CHECK(after(true) == 1024);  // the first is forgiven
  CHECK(after(true) == 512);
  CHECK(after(true) == 256);  // nothing is forgiven until it has grown again
  CHECK(after(false) == 256);
  CHECK(after(false) == 256);
  CHECK(after(true) == 128);  // and the window begins again
  CHECK(scale.at_minimum());
  CHECK(after(true) == 128);
  CHECK(after(false) == 128);
  CHECK(after(false) == 128);
  CHECK(after(false) == 256);
  CHECK_FALSE(scale.at_minimum());
  CHECK(after(true) == 256);  // growing has brought the hysteresis back
  CHECK(after(true) == 128);
}

TEST_CASE("a good step between two overflows does not bring the hysteresis back") {
  LossScale scale({.initial = 1024, .min = 1, .window = 100, .hysteresis = 2}, true);
  for (const bool overflow : {true, false, false, true}) scale.step_done(overflow);
  CHECK(scale.value() == 512);
}

TEST_CASE("without fp16 there is no scale") {
  LossScale scale({.initial = 1024, .min = 1, .window = 1, .hysteresis = 1}, false);
  for (const bool overflow : {true, false, false}) scale.step_done(overflow);
  CHECK(scale.value() == 1);
  CHECK_FALSE(scale.dynamic());
}

TEST_CASE("a loss scale goes on from its JSON") {
  const TrainSpec::Precision::LossScale settings{
      .initial = 1024, .min = 1, .window = 4, .hysteresis = 3};
  LossScale whole(settings, true);
  for (const bool overflow : {false, true, true, false, false, false}) whole.step_done(overflow);
  LossScale restored(settings, true);
  restored.restore(nlohmann::json::parse(whole.to_json().dump()));
  for (const bool overflow : {true, false, false, false, false, true, true, true}) {
    whole.step_done(overflow);
    restored.step_done(overflow);
    CHECK(restored.value() == whole.value());
  }
  CHECK(restored.to_json() == whole.to_json());
}

TEST_CASE("fp16 learns as fp32 does") {
  const Run f32 = train(spec_of("fp32"), {}, 0, 60);
  const Run f16 = train(spec_of("fp16"), {}, 0, 60);
  CHECK(f32.steps.back().loss < 0.8 * f32.steps.front().loss);
  for (size_t i = 0; i < 60; ++i) {
    CAPTURE(i);
    CHECK_FALSE(f16.steps[i].skipped);
    CHECK(f16.steps[i].loss_scale == 65536);
    // 2^-11 is half a unit of fp16; sixty updates let it grow.
    CHECK(f16.steps[i].loss == doctest::Approx(f32.steps[i].loss).epsilon(5e-3));
    CHECK(f16.steps[i].grad_norm == doctest::Approx(f32.steps[i].grad_norm).epsilon(5e-2));
  }
}

TEST_CASE("an absurd scale is lowered by skipped steps that change nothing") {
  const TrainSpec spec = absurd_spec();
  const Run run = train(spec, {}, 0, 40);
  const size_t skipped = skipped_at_first(run);
  REQUIRE(skipped > 3);
  REQUIRE(skipped < 39);
  double scale = 0x1p36;
  for (size_t i = 0; i < skipped; ++i) {
    CAPTURE(i);
    const StepResult& step = run.steps[i];
    CHECK(step.loss_scale == scale);
    CHECK(std::isfinite(step.loss));
    CHECK_FALSE(std::isfinite(step.grad_norm));
    CHECK(step.skipped_so_far == static_cast<int64_t>(i) + 1);
    CHECK(step.lr == learning_rate(spec, 60, 0));
    if (i > 0) scale /= 2;  // the hysteresis of 2 forgives the first
  }
  const StepResult& first = run.steps[skipped];
  CHECK(first.loss_scale == scale);
  CHECK(first.lr == learning_rate(spec, 60, 0));
  CHECK(run.steps[skipped + 1].lr == learning_rate(spec, 60, 1));

  const auto count = static_cast<int64_t>(skipped);
  const Run before = train(spec, {}, 0, count);
  const Run initial = train(spec, {}, 0, 0);
  CHECK(before.masters == initial.masters);
  // As if those steps had never been.
  const Run updated = train(spec, {}, 0, count + 1);
  TrainSpec sane = spec;
  sane.precision.loss_scale.initial = scale;
  CHECK(updated.masters == train(sane, {}, count, count + 1).masters);
  // Adam's bias corrections begin with the first update, which is therefore as large as its rate.
  const std::vector<float>& gain = updated.masters.at("transformer.ln_f.weight");
  float largest = 0;
  for (size_t i = 0; i < gain.size(); ++i) largest = std::max(largest, std::abs(gain[i] - 1.0f));
  CHECK(largest / learning_rate(spec, 60, 0) == doctest::Approx(1).epsilon(1e-2));
}

TEST_CASE("a run that skipped steps resumes with its scale and counts to the bit") {
  const TempDir folder;
  const TrainSpec spec = absurd_spec();
  const auto source = markov_tokens(20'000, kVocab);
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, spec.train.seed);
  // In the middle of the skipped steps, and behind them.
  for (const int64_t saved : {3, 30}) {
    const fs::path dir = folder.path() / std::to_string(saved) / "step-00000000";
    const int64_t end = saved + 30;
    Run whole, resumed;
    nlohmann::json progress;
    run_layout(spec, kVocab, {}, [&](RankContext& rank) {
      rank.trainer.initialise();
      for (int64_t step = 0; step < end; ++step) {
        const StepResult result = rank.trainer.step(step, *source, sampler, {});
        if (step >= saved) whole.steps.push_back(result);
        if (step + 1 != saved) continue;
        progress = rank.trainer.progress();
        save_checkpoint({dir}, {{"step", saved}}, 0, rank.trainer, rank.plan, rank.world);
      }
      collect(rank.trainer, Which::master, whole.masters);
    });
    run_layout(spec, kVocab, {}, [&](RankContext& rank) {
      load_checkpoint(dir, rank.trainer);
      CHECK(rank.trainer.progress() == progress);
      for (int64_t step = saved; step < end; ++step) {
        resumed.steps.push_back(rank.trainer.step(step, *source, sampler, {}));
      }
      collect(rank.trainer, Which::master, resumed.masters);
    });
    REQUIRE(resumed.steps.size() == whole.steps.size());
    for (size_t i = 0; i < whole.steps.size(); ++i) {
      CAPTURE(i);
      CHECK(resumed.steps[i].loss == whole.steps[i].loss);
      CHECK(resumed.steps[i].lr == whole.steps[i].lr);
      CHECK(resumed.steps[i].loss_scale == whole.steps[i].loss_scale);
      CHECK(resumed.steps[i].skipped == whole.steps[i].skipped);
      CHECK(resumed.steps[i].skipped_so_far == whole.steps[i].skipped_so_far);
    }
    CHECK(resumed.masters == whole.masters);
  }
}

TEST_CASE("all ranks of a layout skip the same steps") {
  const TrainSpec spec = absurd_spec();
  const Run single = train(spec, {}, 0, 40);
  const auto source = markov_tokens(20'000, kVocab);
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, spec.train.seed);
  for (const Layout layout : {Layout{.pp = 2}, {.tp = 2}, {.dp = 2}, {.tp = 2, .dp = 2, .pp = 2}}) {
    CAPTURE(layout.tp);
    CAPTURE(layout.dp);
    CAPTURE(layout.pp);
    std::vector<std::vector<StepResult>> ranks(static_cast<size_t>(layout.world()));
    GlobalTensors masters;
    run_layout(spec, kVocab, layout, [&](RankContext& rank) {
      rank.trainer.initialise();
      for (int64_t step = 0; step < 40; ++step) {
        ranks[static_cast<size_t>(rank.rank)].push_back(
            rank.trainer.step(step, *source, sampler, {}));
      }
      collect(rank.trainer, Which::master, masters);
    });
    for (size_t step = 0; step < 40; ++step) {
      for (const std::vector<StepResult>& rank : ranks) {
        CHECK(rank[step].skipped == ranks[0][step].skipped);
        CHECK(rank[step].loss_scale == ranks[0][step].loss_scale);
      }
    }
    CHECK(ranks[0].back().skipped_so_far > 3);
    // Sums in another order may overflow one step earlier or later.
    CHECK(std::abs(ranks[0].back().skipped_so_far - single.steps.back().skipped_so_far) <= 1);
    CHECK(ranks[0].back().loss == doctest::Approx(single.steps.back().loss).epsilon(0.02));
    if (layout.tp == 1 && layout.dp == 1) CHECK(masters == single.masters);
  }
}

TEST_CASE("where the scale cannot be lowered any more an overflow ends the run") {
  TrainSpec spec = absurd_spec();
  spec.precision.loss_scale.min = 0x1p35;
  const auto source = markov_tokens(20'000, kVocab);
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, spec.train.seed);
  for (const std::string nan : {"stop", "skip"}) {
    spec.health.nan = nan;
    run_layout(spec, kVocab, {}, [&](RankContext& rank) {
      rank.trainer.initialise();
      rank.trainer.step(0, *source, sampler, {});
      CHECK(rank.trainer.step(1, *source, sampler, {}).loss_scale == 0x1p36);
      if (nan == "skip") {
        const StepResult third = rank.trainer.step(2, *source, sampler, {});
        CHECK(third.loss_scale == 0x1p35);
        CHECK(third.skipped_so_far == 3);
      } else {
        CHECK_THROWS_AS(rank.trainer.step(2, *source, sampler, {}), Error);
      }
    });
  }
}

TEST_CASE("a loss that is no number is no overflow") {
  const TrainSpec spec = spec_of("fp16");
  const auto source = markov_tokens(20'000, kVocab);
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, spec.train.seed);
  run_layout(spec, kVocab, {}, [&](RankContext& rank) {
    rank.trainer.initialise();
    set_master(rank.trainer, rank.trainer.state().front(), 5, std::nanf(""));
    rank.trainer.weights_changed();
    CHECK_THROWS_AS(rank.trainer.step(0, *source, sampler, {}), Error);
  });
}

}  // namespace loss_scale_test
