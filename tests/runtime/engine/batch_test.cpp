// Batches that change during a run: every sample is taken once and in order, the schedule follows,
// and layouts agree.
#include <algorithm>
#include <utility>

#include <doctest/doctest.h>

#include "support/layouts.h"
#include "support/specs.h"

using namespace mtl;
using namespace mtl::test;

namespace batch_test {

namespace {

constexpr int32_t kVocab = 61;
constexpr int64_t kSeq = 16;

// Notes which samples are read: with sequential windows, where a window begins says which it is.
class Recorder : public TokenSource {
 public:
  explicit Recorder(const TokenSource& source) : source_(source) {}
  int64_t size() const override { return source_.size(); }
  void read(int64_t first, std::span<int32_t> out) const override {
    samples_.push_back(first / kSeq);
    source_.read(first, out);
  }
  uint64_t fingerprint() const override { return 0; }
  std::vector<int64_t> take() const { return std::exchange(samples_, {}); }

 private:
  const TokenSource& source_;
  mutable std::vector<int64_t> samples_;
};

TrainSpec spec_of(int64_t steps) {
  return spec_with({.global_batch = 0, .seq_len = kSeq, .steps = steps});
}

struct Run {
  std::vector<double> losses, norms;
  std::vector<std::vector<int64_t>> samples;  // by step, of all replicas, ascending
};

// `epoch`: sequences of the text. Checks what each rank reads.
Run train(const TrainSpec& spec, Layout layout, int64_t epoch) {
  CAPTURE(layout.dp);
  CAPTURE(layout.pp);
  const auto source = markov_tokens(epoch * kSeq + 1, kVocab);
  const Sampler sampler(source->size(), kSeq, SampleOrder::sequential, 0);
  const auto steps = static_cast<size_t>(spec.train.steps);
  std::vector<std::vector<std::vector<int64_t>>> reads(static_cast<size_t>(layout.world()));
  std::vector<Coord> coords(reads.size());
  Run run;
  run_layout(
      spec, kVocab, layout,
      [&](RankContext& rank) {
        const Recorder recorder(*source);
        rank.trainer.initialise();
        const auto index = static_cast<size_t>(rank.rank);
        coords[index] = rank.trainer.coord();
        for (size_t step = 0; step < steps; ++step) {
          const StepResult result =
              rank.trainer.step(static_cast<int64_t>(step), recorder, sampler, {});
          reads[index].push_back(recorder.take());
          if (rank.rank != 0) continue;
          run.losses.push_back(result.loss);
          run.norms.push_back(result.grad_norm);
        }
      },
      epoch);
  for (size_t step = 0; step < steps; ++step) {
    CAPTURE(step);
    std::vector<int64_t> all;
    for (size_t rank = 0; rank < reads.size(); ++rank) {
      const std::vector<int64_t>& own = reads[rank][step];
      CAPTURE(rank);
      // The last stage reads its targets, the first one its tokens: the same samples.
      const size_t first = rank % static_cast<size_t>(layout.tp * layout.dp);
      CHECK(own == reads[first][step]);
      if (coords[rank][Axis::pp] == 0 && coords[rank][Axis::tp] == 0) {
        all.insert(all.end(), own.begin(), own.end());
      }
    }
    // One replica takes them in order.
    if (layout.dp > 1) std::sort(all.begin(), all.end());
    run.samples.push_back(all);
  }
  return run;
}

// That the steps take so many samples each, one after the other, of a text that starts over.
void check_samples(const Run& run, const std::vector<int64_t>& batches, int64_t epoch) {
  REQUIRE(run.samples.size() == batches.size());
  int64_t next = 0;
  for (size_t step = 0; step < batches.size(); ++step) {
    CAPTURE(step);
    std::vector<int64_t> expected;
    for (int64_t i = 0; i < batches[step]; ++i) expected.push_back(next++ % epoch);
    std::vector<int64_t> samples = run.samples[step];
    // A step across the end of the text, sorted, begins with its end.
    std::sort(expected.begin(), expected.end());
    std::sort(samples.begin(), samples.end());
    CHECK(samples == expected);
  }
}

void check_near(const Run& a, const Run& b) {
  REQUIRE(a.losses.size() == b.losses.size());
  for (size_t step = 0; step < a.losses.size(); ++step) {
    CAPTURE(step);
    CHECK(a.losses[step] == doctest::Approx(b.losses[step]).epsilon(1e-5));
    CHECK(a.norms[step] == doctest::Approx(b.norms[step]).epsilon(1e-4));
  }
}

}  // namespace

TEST_CASE("accumulation by epoch takes every sample once and in order") {
  TrainSpec spec = spec_of(20);
  spec.train.accumulate = {{0, 8}, {2, 4}, {4, 1}};
  // 40 sequences: steps of 16 begin at 0 to 64, of 8 at 80 to 152, of 2 from 160 on.
  const std::vector<int64_t> batches = {16, 16, 16, 16, 16, 8, 8, 8, 8, 8,
                                        8,  8,  8,  8,  8,  2, 2, 2, 2, 2};
  const Run single = train(spec, {}, 40);
  check_samples(single, batches, 40);
  // In order, not only complete.
  CHECK(single.samples[5] == std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7});
  const Run pipeline = train(spec, {.pp = 2}, 40);
  check_samples(pipeline, batches, 40);
  CHECK(pipeline.losses == single.losses);
  CHECK(pipeline.norms == single.norms);
  // The same batches in twice as many pieces: what a token weighs follows the batch.
  TrainSpec pieces = spec;
  pieces.train.micro_batch = 1;
  pieces.train.accumulate = {{0, 16}, {2, 8}, {4, 2}};
  const Run smaller = train(pieces, {.pp = 2}, 40);
  check_samples(smaller, batches, 40);
  check_near(smaller, single);
  const Run replicas = train(pieces, {.dp = 2}, 60);  // twice the batch, another text
  check_samples(replicas, {32, 32, 32, 32, 16, 16, 16, 16, 16, 16, 16, 4, 4, 4, 4, 4, 4, 4, 4, 4},
                60);
}

TEST_CASE("accumulation by step reaches the trainer in every layout") {
  TrainSpec spec = spec_of(7);
  spec.train.accumulate = {{0, 8}, {2, 4}, {4, 1}};
  spec.train.accumulate_by = "step";
  const Run single = train(spec, {}, 1000);
  check_samples(single, {16, 16, 8, 8, 2, 2, 2}, 1000);
  const Run pipeline = train(spec, {.pp = 2}, 1000);
  CHECK(pipeline.losses == single.losses);
  CHECK(pipeline.norms == single.norms);
  spec.train.micro_batch = 1;
  check_near(train(spec, {.tp = 2, .dp = 2, .pp = 2}, 1000), single);
}

TEST_CASE("a batch ramp grows the step in every layout") {
  TrainSpec spec = spec_of(9);
  spec.train.global_batch = 16;
  spec.train.batch_ramp = {{0, 4}, {3, 8}, {6, 16}};
  const std::vector<int64_t> batches = {4, 4, 4, 8, 8, 8, 16, 16, 16};
  const Run single = train(spec, {}, 1000);
  check_samples(single, batches, 1000);
  const Run pipeline = train(spec, {.pp = 2}, 1000);
  check_samples(pipeline, batches, 1000);
  CHECK(pipeline.losses == single.losses);
  const Run mixed = train(spec, {.dp = 2, .pp = 2}, 1000);
  check_samples(mixed, batches, 1000);
  check_near(mixed, single);
}

TEST_CASE("a step of a ramp is the step of a run that always has its batch") {
  TrainSpec always = spec_of(4);
  always.train.global_batch = 16;
  TrainSpec ramp = always;
  ramp.train.batch_ramp = {{0, 8}, {2, 16}};
  const auto source = markov_tokens(1000 * kSeq + 1, kVocab);
  const Sampler sampler(source->size(), kSeq, SampleOrder::sequential, 0);
  const auto first = [&](const TrainSpec& spec, int64_t step, GlobalTensors& gradients) {
    double loss = 0;
    run_layout(spec, kVocab, {}, [&](RankContext& rank) {
      rank.trainer.initialise();
      loss = rank.trainer.gradients(step, *source, sampler).loss;
      collect(rank.trainer, Which::grad, gradients);
    });
    return loss;
  };
  GlobalTensors grown, plain;
  // Both take samples 16 to 31.
  CHECK(first(ramp, 2, grown) == first(always, 1, plain));
  CHECK(grown == plain);
}

TEST_CASE("a batch ramp and interleaved stages go together") {
  TrainSpec spec = spec_of(6);
  spec.model.layers = 4;
  spec.train.global_batch = 16;
  spec.train.batch_ramp = {{0, 4}, {2, 8}, {4, 12}};
  const Run single = train(spec, {}, 1000);
  const Run interleaved = train(spec, {.pp = 2, .virtual_stages = 2}, 1000);
  check_samples(interleaved, {4, 4, 8, 8, 12, 12}, 1000);
  CHECK(interleaved.losses == single.losses);
  CHECK(interleaved.norms == single.norms);
}

}  // namespace batch_test
