// Numbers that are none: a run stops and says where the first one was made, or leaves the step out.
#include "runtime/engine/health.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "support/layouts.h"
#include "support/specs.h"

using namespace mtl;
using namespace mtl::test;

namespace health_test {

namespace {

constexpr int32_t kVocab = 61;
constexpr int32_t kRare = 60;  // a token that the text has where a test says so
constexpr int64_t kSeq = 16;

// Four layers; steps of eight sequences in micro-batches of two.
TrainSpec spec_of(const std::string& nan = "stop") {
  TrainSpec spec = spec_with({.layers = 4, .seq_len = kSeq});
  spec.model.tie_embeddings = false;
  spec.health.nan = nan;
  return spec;
}

// A text in which sample `rare` has the rare token, read in order.
SyntheticTokens text_with(int64_t rare) {
  return SyntheticTokens(64 * kSeq + 1, [rare](int64_t i) {
    return i == rare * kSeq + 3 ? kRare : static_cast<int32_t>(i * 7 + i * i % 5) % kRare;
  });
}

using Prepare = std::function<void(RankContext& rank)>;

// Trains two steps after `prepare` and gives the note of the error that ends them.
std::string note_of(const TrainSpec& spec, Layout layout, int64_t rare, const Prepare& prepare) {
  const SyntheticTokens source = text_with(rare);
  const Sampler sampler(source.size(), kSeq, SampleOrder::sequential, 0);
  try {
    run_layout(spec, kVocab, layout, [&](RankContext& rank) {
      rank.trainer.initialise();
      prepare(rank);
      for (int64_t step = 0; step < 2; ++step) rank.trainer.step(step, source, sampler, {});
    });
  } catch (const Error& error) {
    const Diagnostic& diagnostic = error.diagnostics().front();
    CHECK(error.exit() == Exit::run_failed);
    CHECK(diagnostic.code == "loss.nan");
    CHECK(diagnostic.what.starts_with("step "));
    REQUIRE(diagnostic.notes.size() == 1);
    return diagnostic.notes.front();
  }
  return "no error";
}

// Of the first matrix of a layer that is on this rank.
ParameterState matrix_of(Trainer& trainer, int64_t layer) {
  for (const ParameterState& parameter : trainer.state()) {
    const ParamRow& row = *parameter.row;
    if (row.layer == layer && row.shape.size() == 2 && parameter.part.count > 0) return parameter;
  }
  return {};
}

// Writes `value` into a weight of layer 3 on one rank; -1 = all that hold it.
Prepare plant(int on_rank, float value) {
  return [=](RankContext& rank) {
    const ParameterState parameter = matrix_of(rank.trainer, 3);
    const bool here = parameter.row != nullptr && (on_rank < 0 || on_rank == rank.rank);
    if (here) set_master(rank.trainer, parameter, 3, value);
    rank.trainer.weights_changed();
  };
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
const std::string kWeights =
    "first not finite: the weights transformer.h.3.attn.c_attn.weight, before the step, on ";

// The rare token's embedding is finite, but no norm can take it.
void make_rare_huge(RankContext& rank) {
  set_masters(rank.trainer, [](const ParamRow& row, int64_t i) {
    if (row.layer == -1 && row.slot == "tokens" && i / 32 == kRare) return 3e38f;
    return std::sin(static_cast<float>(i)) * 0.02f + (row.shape.size() == 1 ? 1.0f : 0.0f);
  });
}

// Zeros in, zeros out, and each norm multiplies what comes back by 1e15: only gradients overflow.
TrainSpec overflowing_gradients() {
  TrainSpec spec = spec_of();
  spec.model.norm.eps = 1e-30;
  return spec;
}
void make_silent(RankContext& rank) {
  for (const ParameterState& parameter : rank.trainer.state()) {
    if (parameter.row->layer != -1) continue;
    std::fill_n(parameter.master.whole.as<float>(), parameter.part.count, 0.0f);
  }
  rank.trainer.weights_changed();
}

}  // namespace

TEST_CASE("a weight that is no number is named with its rank") {
  TrainSpec spec = spec_of();
  CHECK(note_of(spec, {}, 99, plant(0, kNan)) == kWeights + "rank 0");
  CHECK(note_of(spec, {.pp = 2}, 99, plant(-1, kNan)) == kWeights + "rank 1");
  CHECK(note_of(spec, {.tp = 2}, 99, plant(1, kNan)) == kWeights + "rank 1");
  CHECK(note_of(spec, {.pp = 2, .virtual_stages = 2}, 99, plant(-1, kNan)) == kWeights + "rank 1");
  // ZeRO-1 hands a weight to all replicas, alone a replica keeps it.
  CHECK(note_of(spec, {.dp = 2}, 99, plant(-1, kNan)) == kWeights + "ranks 0, 1");
  spec.parallel.zero = 0;
  CHECK(note_of(spec, {.dp = 2}, 99, plant(1, kNan)) == kWeights + "rank 1");
  // In shards it is nobody else's, and the rank's first element is another one.
  spec.parallel.zero = 3;
  CHECK(note_of(spec, {.dp = 2}, 99, plant(1, kNan)).ends_with(", before the step, on rank 1"));
  spec.parallel.zero = 0;
  spec.train.micro_batch = 1;
  CHECK(note_of(spec, {.dp = 8}, 99, plant(-1, kNan)) == kWeights + "ranks 0, 1, 2, 3 and 4 more");
}

TEST_CASE("of several broken weights the first of the model is named") {
  const std::string note = note_of(spec_of(), {.pp = 2}, 99, [](RankContext& rank) {
    for (const ParameterState& parameter : rank.trainer.state()) {
      if (parameter.row->layer >= 1) set_master(rank.trainer, parameter, 0, kNan);
    }
    rank.trainer.weights_changed();
  });
  CHECK(note.find("the weights transformer.h.1.ln_1.weight,") != std::string::npos);
  CHECK(note.ends_with("on rank 0"));
}

TEST_CASE("what a step makes of finite weights is named with layer and micro-batch and rank") {
  const std::string output = "first not finite: layer 3: output of the layer, in forward of ";
  CHECK(note_of(spec_of(), {}, 99, plant(0, 3e38f)) == output + "micro-batch 0 on rank 0");
  CHECK(note_of(spec_of(), {.pp = 4}, 99, plant(-1, 3e38f)) == output + "micro-batch 0 on rank 3");
}

TEST_CASE("a number that overflows in one micro-batch is found there in every layout") {
  const auto note = [](const TrainSpec& spec, Layout layout, int64_t rare) {
    return note_of(spec, layout, rare, make_rare_huge);
  };
  const std::string output = "first not finite: layer 0: output of the layer, in forward of ";
  const TrainSpec spec = spec_of();
  CHECK(note(spec, {}, 5) == output + "micro-batch 2 on rank 0");
  CHECK(note(spec, {.pp = 2}, 5) == output + "micro-batch 2 on rank 0");
  CHECK(note(spec, {.pp = 2, .virtual_stages = 2}, 7) == output + "micro-batch 3 on rank 0");
  // Replica 0 takes samples 0, 1, 4, 5, replica 1 the others.
  CHECK(note(spec, {.dp = 2}, 5) == output + "micro-batch 1 on rank 0");
  CHECK(note(spec, {.dp = 2}, 3) == output + "micro-batch 0 on rank 1");
  CHECK(note(spec, {.dp = 2, .pp = 2}, 7) == output + "micro-batch 1 on rank 1");
  for (const int zero : {2, 3}) {
    CAPTURE(zero);
    TrainSpec shards = spec;
    shards.parallel.zero = zero;
    CHECK(note(shards, {.dp = 2}, 5) == output + "micro-batch 1 on rank 0");
    CHECK(note(shards, {.dp = 2}, 3) == output + "micro-batch 0 on rank 1");
  }
  // Sequence parallelism: the second of two sequences is rank 1's.
  CHECK(note(spec, {.tp = 2}, 5) == output + "micro-batch 2 on rank 1");
  TrainSpec without = spec;
  without.parallel.sp = "false";
  CHECK(note(without, {.tp = 2}, 5) == output + "micro-batch 2 on ranks 0, 1");
  CHECK(note(spec, {.tp = 2, .dp = 2, .pp = 2}, 7) == output + "micro-batch 1 on rank 3");
}

TEST_CASE("recompute does not hide where a number was made") {
  TrainSpec spec = spec_of();
  const std::string place =
      "first not finite: layer 0: output of the layer, in forward of micro-batch 2 on rank 0";
  for (const char* mode : {"selective", "full"}) {
    CAPTURE(mode);
    spec.recompute.mode = mode;
    CHECK(note_of(spec, {}, 5, make_rare_huge) == place);
    CHECK(note_of(spec, {.pp = 2}, 5, make_rare_huge) == place);
  }
  spec.recompute.distribute = true;
  spec.parallel.sp = "false";
  CHECK(note_of(spec, {.tp = 2, .pp = 2}, 5, make_rare_huge).find("layer 0: output of the layer") !=
        std::string::npos);
}

TEST_CASE("an overflow of gradients alone is found in backward") {
  const TrainSpec spec = overflowing_gradients();
  const auto note = [&](const TrainSpec& with, Layout layout) {
    return note_of(with, layout, 99, make_silent);
  };
  const std::string gradient =
      "first not finite: layer 2: gradient of the residual stream, in backward of micro-batch 0 "
      "on ";
  CHECK(note(spec, {}) == gradient + "rank 0");
  CHECK(note(spec, {.pp = 2}) == gradient + "rank 1");
  CHECK(note(spec, {.pp = 4}) == gradient + "rank 2");
  CHECK(note(spec, {.tp = 2}) == gradient + "ranks 0, 1");
  CHECK(note(spec, {.dp = 2}) == gradient + "ranks 0, 1");
  TrainSpec full = spec;
  full.recompute.mode = "full";
  CHECK(note(full, {.pp = 2}) == gradient + "rank 1");
  // What is left for later still has no number of the step that went wrong.
  TrainSpec later = spec;
  later.parallel.schedule = "zb-h1";
  CHECK(note(later, {.pp = 2}) == gradient + "rank 1");
  CHECK(note(later, {.pp = 4}) == gradient + "rank 2");
}

TEST_CASE("health.nan=skip leaves the step out and goes on") {
  const SyntheticTokens source = text_with(8 + 5);  // in the second step
  const Sampler sampler(source.size(), kSeq, SampleOrder::sequential, 0);
  for (const Layout layout : {Layout{},
                              {.pp = 2},
                              {.tp = 2},
                              {.dp = 2},
                              {.cp = 2},
                              {.ep = 2},
                              {.tp = 2, .dp = 2, .pp = 2}}) {
    CAPTURE(layout.tp);
    CAPTURE(layout.dp);
    CAPTURE(layout.pp);
    TrainSpec spec = spec_of("skip");
    if (layout.ep > 1) {
      spec.model.activation = "swiglu";
      spec.model.bias = false;
      // The biases of experts stay, too.
      spec.model.moe = {.experts = 2,
                        .topk = 1,
                        .score = "sigmoid",
                        .normalize = false,
                        .expert_bias = true,
                        .bias_rate = 0.01};
    }
    std::vector<StepResult> steps;
    std::vector<GlobalTensors> masters(4);
    run_layout(spec, kVocab, layout, [&](RankContext& rank) {
      rank.trainer.initialise();
      make_rare_huge(rank);
      for (int64_t step = 0; step < 4; ++step) {
        const StepResult result = rank.trainer.step(step, source, sampler, {});
        if (rank.rank == 0) steps.push_back(result);
        collect(rank.trainer, Which::master, masters[static_cast<size_t>(step)]);
      }
    });
    for (size_t step = 0; step < 4; ++step) {
      CAPTURE(step);
      CHECK(steps[step].skipped == (step == 1));
      CHECK(steps[step].skipped_so_far == (step >= 1 ? 1 : 0));
      CHECK(std::isfinite(steps[step].loss) == (step != 1));
    }
    CHECK(steps[1].lr == steps[2].lr);  // the schedule waits
    CHECK(steps[2].lr < steps[0].lr);
    CHECK(masters[1] == masters[0]);
    CHECK(masters[2] != masters[1]);
  }
}

TEST_CASE("health.nan=skip does not go on for ever when the weights are lost") {
  const auto source = markov_tokens(4'000, kVocab);
  const Sampler sampler(source->size(), kSeq, SampleOrder::random, 1);
  run_layout(spec_of("skip"), kVocab, {}, [&](RankContext& rank) {
    rank.trainer.initialise();
    set_master(rank.trainer, rank.trainer.state().back(), 0, kNan);
    rank.trainer.weights_changed();
    int64_t step = 0;
    for (; step < 20; ++step) CHECK(rank.trainer.step(step, *source, sampler, {}).skipped);
    CHECK_THROWS_AS(rank.trainer.step(step, *source, sampler, {}), Error);
  });
}

TEST_CASE("health.nan=skip: steps in a row are counted on when a run is resumed") {
  const auto source = markov_tokens(4'000, kVocab);
  const Sampler sampler(source->size(), kSeq, SampleOrder::random, 1);
  nlohmann::json progress;
  for (const int64_t first : {0, 15}) {
    run_layout(spec_of("skip"), kVocab, {}, [&](RankContext& rank) {
      rank.trainer.initialise();
      set_master(rank.trainer, rank.trainer.state().back(), 0, kNan);
      rank.trainer.weights_changed();
      if (first > 0) rank.trainer.restore_progress(progress, first, rank.trainer.first_sample(15));
      const int64_t end = first > 0 ? 20 : 15;
      int64_t step = first;
      for (; step < end; ++step) CHECK(rank.trainer.step(step, *source, sampler, {}).skipped);
      progress = rank.trainer.progress();
      if (first > 0) CHECK_THROWS_AS(rank.trainer.step(step, *source, sampler, {}), Error);
    });
  }
}

}  // namespace health_test
