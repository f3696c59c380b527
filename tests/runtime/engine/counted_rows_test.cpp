// The head takes only rows whose targets count in the loss: nothing but time may tell.
#include "runtime/engine/counted_rows.h"

#include <vector>

#include <doctest/doctest.h>

#include "runtime/data/orders.h"
#include "support/guarded_device.h"
#include "support/layouts.h"
#include "support/reference.h"
#include "support/some_count.h"
#include "support/specs.h"

using namespace mtl;
using namespace mtl::test;

namespace counted_rows_test {

namespace {

constexpr int32_t kVocab = 61;
constexpr int64_t kSeq = 32;

TrainSpec base() {
  TrainSpec spec = spec_with({.layers = 4, .seq_len = kSeq, .steps = 4});
  spec.lr.max = 1e-3;
  return spec;
}

std::shared_ptr<const Samples> all_count() {
  return window_samples(std::shared_ptr<const TokenSource>(markov_tokens(4000, kVocab)), kSeq,
                        SampleOrder::random, 5, true);
}

std::unique_ptr<Samples> some_count(bool others = false) {
  return std::make_unique<SomeCount>(all_count(), kSeq, [others](int64_t sample, int64_t position) {
    return answered(sample, position) != others;
  });
}

struct Trajectory {
  GlobalTensors gradients, weights;
  std::vector<double> losses, norms, counted;
  double valid = 0;
};

Trajectory train(const TrainSpec& spec, Layout layout, const Samples& samples,
                 const MakeDevice& make_device = {}) {
  Trajectory result;
  const auto body = [&](RankContext& rank) {
    rank.trainer.initialise();
    rank.trainer.gradients(0, samples);
    collect(rank.trainer, Which::grad, result.gradients);
    for (int64_t step = 0; step < spec.train.steps; ++step) {
      const StepResult done = rank.trainer.step(step, samples, {});
      if (rank.rank != 0) continue;
      result.losses.push_back(done.loss);
      result.norms.push_back(done.grad_norm);
      result.counted.push_back(done.counted);
    }
    collect(rank.trainer, Which::master, result.weights);
    const double valid = rank.trainer.evaluate(samples, 7);
    if (rank.rank == 0) result.valid = valid;
  };
  run_layout(spec, kVocab, layout, body, 0, {}, make_device);
  return result;
}

// Everything that lies between the norm and the losses.
TrainSpec all_of_a_head() {
  TrainSpec spec = base();
  use_llama_blocks(spec);
  spec.model.tie_embeddings = false;
  spec.model.head_bias = true;
  spec.model.logit_cap = 4;
  spec.model.logit_scale = 0.5;
  spec.train.logits_rows = 24;
  return spec;
}

// Means of both parts, put together, against that of the whole, of the first step.
void check_parts(const TrainSpec& spec, Layout layout) {
  CAPTURE(layout.tp);
  CAPTURE(layout.pp);
  CAPTURE(layout.cp);
  TrainSpec one = spec;
  one.train.steps = 1;
  const Trajectory whole = train(one, layout, *all_count());
  const Trajectory some = train(one, layout, *some_count());
  const Trajectory others = train(one, layout, *some_count(true));
  REQUIRE(some.counted[0] > 0);
  REQUIRE(others.counted[0] > 0);
  CHECK(some.counted[0] + others.counted[0] == whole.counted[0]);
  CHECK(some.losses[0] * some.counted[0] + others.losses[0] * others.counted[0] ==
        doctest::Approx(whole.losses[0] * whole.counted[0]).epsilon(1e-6));
  for (const auto& [name, gradient] : whole.gradients) {
    CAPTURE(name);
    std::vector<float> sum = some.gradients.at(name);
    const std::vector<float>& rest = others.gradients.at(name);
    const auto share = static_cast<float>(some.counted[0] / whole.counted[0]);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = share * sum[i] + (1 - share) * rest[i];
    CHECK(relative_error(sum, gradient) < 1e-5);
  }
}

}  // namespace

TEST_CASE("counted rows: which they are, and where the others find a gradient of 0") {
  CountedRows rows;
  const std::vector<int32_t> targets = {7, -1, -1, 3, -1, -1, -1, -1, 9, -1, -1, -1, -1, -1, -1, 4};
  rows.take(targets);
  REQUIRE(rows.rows == 5);  // four, and one for the others
  CHECK(rows.rows_of_pass == std::vector<int32_t>{0, 3, 8, 15, 0});
  CHECK(rows.targets == std::vector<int32_t>{7, 3, 9, 4, -1});
  CHECK(rows.places == std::vector<int32_t>{0, 4, 4, 1, 4, 4, 4, 4, 2, 4, 4, 4, 4, 4, 4, 3});
  // None counts: still a product, of a row without a target.
  rows.take(std::vector<int32_t>(16, -1));
  CHECK(rows.rows == 1);
  CHECK(rows.targets == std::vector<int32_t>{-1});
  CHECK(rows.places == std::vector<int32_t>(16, 0));
  // Filled up to a sixteenth of the pass.
  std::vector<int32_t> longer(64, -1);
  for (size_t i = 10; i < 19; ++i) longer[i] = 6;
  rows.take(longer);
  CHECK(rows.rows == 12);
  CHECK(rows.rows_of_pass == std::vector<int32_t>{10, 11, 12, 13, 14, 15, 16, 17, 18, 0, 0, 0});
  CHECK(rows.targets == std::vector<int32_t>{6, 6, 6, 6, 6, 6, 6, 6, 6, -1, -1, -1});
  // So few do not that there is nothing to gain.
  std::vector<int32_t> most(16, 5);
  rows.take(most);
  CHECK(rows.rows == 0);
  most[3] = -1;
  rows.take(most);
  CHECK(rows.rows == 0);
  most[4] = -1;
  rows.take(most);
  CHECK(rows.rows == 15);
  // Less than 16.
  rows.take(std::vector<int32_t>{-1, 5, -1});
  CHECK(rows.rows == 2);
  CHECK(rows.rows_of_pass == std::vector<int32_t>{1, 0});
  CHECK(rows.places == std::vector<int32_t>{1, 0, 1});
}

TEST_CASE("counted rows: the gradients of two parts of the targets are those of all") {
  for (const TrainSpec& spec : {base(), all_of_a_head()}) {
    CAPTURE(spec.model.tie_embeddings);
    for (const Layout layout : {Layout{}, Layout{.tp = 2}, Layout{.tp = 4, .pp = 2},
                                Layout{.dp = 2, .pp = 2, .virtual_stages = 2}, Layout{.cp = 2}}) {
      for (const char* sp : {"false", "true"}) {
        if (layout.tp == 1 && sp == std::string("true")) continue;
        CAPTURE(sp);
        TrainSpec other = spec;
        other.parallel.sp = sp;
        check_parts(other, layout);
      }
    }
  }
}

TEST_CASE("counted rows: every layout trains the same") {
  const TrainSpec spec = all_of_a_head();
  const auto samples = some_count();
  const Trajectory one = train(spec, {}, *samples);
  const auto near = [&](const TrainSpec& other, Layout layout) {
    CAPTURE(layout.tp);
    CAPTURE(layout.dp);
    CAPTURE(layout.pp);
    CAPTURE(layout.cp);
    const Trajectory got = train(other, layout, *samples);
    CHECK(got.counted == one.counted);
    for (size_t i = 0; i < one.losses.size(); ++i) {
      CHECK(got.losses[i] == doctest::Approx(one.losses[i]).epsilon(1e-4));
      CHECK(got.norms[i] == doctest::Approx(one.norms[i]).epsilon(1e-4));
    }
    CHECK(got.valid == doctest::Approx(one.valid).epsilon(1e-4));
  };
  TrainSpec other = spec;
  other.parallel.sp = "true";
  near(other, {.tp = 2});
  near(other, {.tp = 2, .dp = 2, .pp = 2});
  other.parallel.zero = 3;
  near(other, {.tp = 2, .dp = 2});
  near(spec, {.dp = 4});
  near(spec, {.dp = 2, .cp = 2});
  other = spec;
  other.train.micro_batch = 4;
  near(other, {});
  other = spec;
  other.parallel.schedule = "zb-h1";
  near(other, {.pp = 4});
  // Several micro-batches are under way, each with rows of its own.
  const Trajectory staged = train(spec, {.pp = 4}, *samples);
  CHECK(staged.losses == one.losses);
  CHECK(staged.weights == one.weights);
  CHECK(staged.valid == one.valid);
}

TEST_CASE("counted rows: the head multiplies no more than a sixteenth of all beyond them") {
  TrainSpec spec = base();
  spec.train.steps = 1;
  const auto products = [&](const Samples& samples) {
    GuardedDevice* device = nullptr;
    int64_t done = 0;
    const auto body = [&](RankContext& rank) {
      rank.trainer.initialise();
      const int64_t before = device->multiplied();
      rank.trainer.step(0, samples, {});
      done = device->multiplied() - before;
    };
    run_layout(spec, kVocab, {}, body, 0, {}, [&](int) {
      auto made = std::make_unique<GuardedDevice>();
      device = made.get();
      return made;
    });
    return done;
  };
  const SomeCount quarter(all_count(), kSeq, [](int64_t, int64_t at) { return at % 4 == 0; });
  const int64_t tokens = spec.train.global_batch * kSeq;
  // Forward and both gradients, over the padded vocabulary.
  const int64_t of_a_token = 3 * spec.model.hidden * 128;
  // Of 64 tokens of a micro-batch 16 count, which with one more are 20 rows: 44 are spared.
  CHECK(products(*all_count()) - products(quarter) == tokens * 44 / 64 * of_a_token);
}

}  // namespace counted_rows_test
