// Design idea B: a layout never changes the model.
#include <limits>

#include <doctest/doctest.h>

#include "runtime/engine/layout_matrix.h"
#include "support/layouts.h"
#include "support/sanitized.h"
#include "support/specs.h"

using namespace mtl;
using namespace mtl::test;

namespace layout_test {

namespace {

using layout_matrix::Trajectory;

constexpr int32_t kVocab = 65;

TrainSpec char_spec() {
  TrainSpec spec =
      spec_with({.layers = 3, .hidden = 64, .micro_batch = 0, .seq_len = 32, .steps = 100});
  spec.train.seed = 7;
  spec.lr.max = 1e-3;
  spec.lr.min = 1e-4;
  spec.lr.warmup = 10;
  return spec;
}

Trajectory train(const TrainSpec& spec, Layout layout, int64_t steps) {
  return layout_matrix::train(spec, layout, steps, kVocab);
}

void check_same_model(const TrainSpec& spec, const Trajectory& single, Layout layout) {
  CAPTURE(layout.tp);
  CAPTURE(layout.dp);
  const auto steps = static_cast<int64_t>(single.losses.size());
  layout_matrix::check_near(train(spec, layout, steps), single, layout_matrix::kFp32);
}

}  // namespace

TEST_CASE("every TP x DP layout starts bit-equal and follows the single rank for 100 steps") {
  const TrainSpec spec = char_spec();
  const Trajectory single = train(spec, {}, 100);
  CHECK(single.losses.back() < 0.75 * single.losses.front());  // it learns
  for (const Layout layout : {Layout{2, 1}, {1, 2}, {1, 8}, {4, 2}}) {
    check_same_model(spec, single, layout);
  }
}

TEST_CASE("the same holds with dropout, untied embeddings, no biases and gradient accumulation") {
  TrainSpec spec = char_spec();
  spec.model.dropout = {0.1, 0.1};
  spec.model.tie_embeddings = false;
  spec.model.bias = false;
  spec.train.micro_batch = 2;
  const Trajectory single = train(spec, {}, 20);
  for (const Layout layout : {Layout{2, 1}, {1, 2}, {2, 2}, {1, 4}})
    check_same_model(spec, single, layout);
}

TEST_CASE("a tp that leaves the last rank without vocabulary still gives the same model") {
  TrainSpec spec = char_spec();
  spec.model.vocab_pad_to = 256;  // 65 ids in 256 rows over 4 ranks: 64, 1, 0, 0
  const Trajectory single = train(spec, {}, 5);
  check_same_model(spec, single, {4, 1});
}

TEST_CASE("odd degrees work where they divide") {
  TrainSpec spec = char_spec();
  spec.model.heads = 6;
  spec.model.hidden = 48;
  spec.train.global_batch = 6;
  const Trajectory single = train(spec, {}, 10);
  for (const Layout layout : {Layout{3, 1}, {1, 3}, {3, 2}, {6, 1}})
    check_same_model(spec, single, layout);
}

TEST_CASE("gradient accumulation changes only the order of sums") {
  TrainSpec spec = char_spec();
  const Trajectory whole = train(spec, {}, 20);
  spec.train.micro_batch = 2;
  const Trajectory pieces = train(spec, {}, 20);
  for (size_t step = 0; step < whole.losses.size(); ++step) {
    CHECK(pieces.losses[step] == doctest::Approx(whole.losses[step]).epsilon(1e-4));
  }
}

TEST_CASE("bf16 learns what fp32 learns") {
  // The layouts of bf16 are in layout_matrix_test.cpp. One rounding of bf16 is 2^-8 relative at
  // most; a few of them per layer, which average over the tokens, leave far less than 1 % of the
  // loss.
  TrainSpec spec = char_spec();
  const Trajectory fp32 = train(spec, {}, 50);
  spec.precision.dtype = "bf16";
  const Trajectory bf16 = train(spec, {}, 50);
  CHECK(bf16.losses.back() == doctest::Approx(fp32.losses.back()).epsilon(0.01));
}

TEST_CASE("a run is bit-reproducible") {
  const TrainSpec spec = char_spec();
  CHECK(train(spec, {2, 2}, 10).losses == train(spec, {2, 2}, 10).losses);
}

TEST_CASE("a token outside the vocabulary is an error that names it, not a read past the table") {
  TrainSpec spec = char_spec();
  const SyntheticTokens source(1000, [](int64_t i) { return i == 500 ? 65 : 3; });
  const Sampler sampler(source.size(), spec.train.seq_len, SampleOrder::sequential, 0);
  run_layout(spec, kVocab, {}, [&](RankContext& rank) {
    rank.trainer.initialise();
    CHECK_NOTHROW(rank.trainer.step(0, source, sampler, {}));
    try {
      rank.trainer.step(1, source, sampler, {});
      FAIL("accepted");
    } catch (const Error& error) {
      CHECK(error.exit() == Exit::data);
      CHECK(error.diagnostics().front().code == "data.token_range");
      CHECK(error.diagnostics().front().what.find("token 65 in samples 8..15") !=
            std::string::npos);
    }
  });
}

TEST_CASE("a loss that is no number ends the run with its step") {
  TrainSpec spec = char_spec();
  const auto source = markov_tokens(1000, kVocab);
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, 1);
  run_layout(spec, kVocab, {}, [&](RankContext& rank) {
    rank.trainer.initialise();
    set_master(rank.trainer, rank.trainer.state().front(), 5,
               std::numeric_limits<float>::quiet_NaN());
    rank.trainer.weights_changed();
    try {
      rank.trainer.step(41, *source, sampler, {});
      FAIL("accepted");
    } catch (const Error& error) {
      CHECK(error.diagnostics().front().code == "loss.nan");
      CHECK(error.diagnostics().front().what.find("step 42") != std::string::npos);
    }
  });
}

TEST_CASE("overlap changes no bit where there is something to overlap") {
  constexpr int64_t kSteps = kSanitized ? 2 : 3;
  // Rows of the stream and buckets beyond the size that is worth handing to another thread.
  TrainSpec spec = char_spec();
  spec.model.layers = 4;
  spec.model.hidden = 256;
  spec.train.global_batch = 16;
  spec.train.micro_batch = 4;
  spec.train.seq_len = 64;
  spec.parallel.bucket_mb = 1;
  for (const Layout layout : {Layout{.tp = 2}, {.dp = 2}, {.pp = 4}, {.tp = 2, .dp = 2, .pp = 2}}) {
    for (const char* sp : {"true", "false"}) {
      if (layout.tp == 1 && sp[0] == 't') continue;  // there is none
      CAPTURE(layout.tp);
      CAPTURE(layout.dp);
      CAPTURE(layout.pp);
      spec.parallel.sp = sp;
      spec.parallel.overlap = {
          .grad_reduce = true, .param_gather = "auto", .p2p = true, .tp = "true"};
      const Trajectory on = train(spec, layout, kSteps);
      spec.parallel.overlap = {
          .grad_reduce = false, .param_gather = "false", .p2p = false, .tp = "false"};
      const Trajectory off = train(spec, layout, kSteps);
      CHECK(on.losses == off.losses);
      CHECK(on.norms == off.norms);
      CHECK(on.first_gradients == off.first_gradients);
    }
  }
}

}  // namespace layout_test
