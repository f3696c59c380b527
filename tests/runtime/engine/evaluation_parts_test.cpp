// An evaluation in parts, between which all ranks agree to go on: it has the bits of a whole one,
// and who leaves it leaves together, in every layout.
#include <algorithm>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "support/layouts.h"
#include "support/specs.h"

using namespace mtl;
using namespace mtl::test;

namespace evaluation_parts_test {

namespace {

constexpr int64_t kVocab = 65;
constexpr int64_t kWindows = 101;  // which no number of replicas divides

struct Way {
  std::string name;
  Layout layout;
  int zero = 1;
  bool experts = false;
};

TrainSpec spec_of(const Way& way) {
  TrainSpec spec = spec_with({.layers = 4, .global_batch = 8, .micro_batch = 1, .steps = 3});
  spec.parallel.zero = way.zero;
  if (way.experts) {
    use_llama_blocks(spec);
    spec.model.ffn = 48;
    spec.model.moe = {.experts = 4, .topk = 2};
  }
  return spec;
}

// What a rank sees of a run that evaluates, leaves an evaluation, trains and evaluates again.
struct Seen {
  double whole = 0, in_parts = 0, after_leaving = 0;
  bool left = false;
  std::vector<int64_t> asked, asked_until_left;
  std::vector<double> losses;
  double last = 0;
};

// `leave_at`: which question the last rank, and no other, answers with a wish to stop; 0: none.
std::vector<Seen> run(const Way& way, size_t leave_at) {
  const auto source = markov_tokens(5'000, kVocab);
  const TrainSpec spec = spec_of(way);
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, 1);
  const TokenWindows samples(*source, sampler);
  std::vector<Seen> all(static_cast<size_t>(way.layout.world()));
  run_layout(spec, kVocab, way.layout, [&](RankContext& rank) {
    Seen& seen = all[static_cast<size_t>(rank.rank)];
    const bool asks = rank.rank == way.layout.world() - 1;
    const auto losses = [&](std::vector<int64_t>& asked, size_t at) {
      return rank.trainer.losses(samples, kWindows, [&](int64_t done) {
        asked.push_back(done);
        return !rank.trainer.requests_of_all({.stop = asks && asked.size() == at}).stop;
      });
    };
    rank.trainer.initialise();
    seen.whole = rank.trainer.evaluate(samples, kWindows);
    seen.in_parts = losses(seen.asked, 0)->mean();
    if (leave_at > 0) {
      seen.left = !losses(seen.asked_until_left, leave_at);
      seen.after_leaving = rank.trainer.evaluate(samples, kWindows);
      seen.left = seen.left && !losses(seen.asked_until_left, seen.asked_until_left.size() + 1);
    }
    for (int64_t step = 0; step < 3; ++step) {
      const StepResult result = rank.trainer.step(step, samples, {});
      CHECK_FALSE(result.requests.stop);
      seen.losses.push_back(result.loss);
    }
    seen.last = rank.trainer.evaluate(samples, kWindows);
  });
  return all;
}

}  // namespace

TEST_CASE("all ranks leave an evaluation at the same part, and nothing of it stays") {
  for (const Way& way : std::vector<Way>{
           {"one rank", {}},
           {"tp 2", {.tp = 2}},
           {"pp 2", {.pp = 2}},
           {"pp 2 virtual 2", {.pp = 2, .virtual_stages = 2}},
           {"dp 2", {.dp = 2}},
           {"dp 2 with ZeRO-3", {.dp = 2}, 3},
           {"dp 4 with two copies of shards", {.dp = 4, .zero_ranks = 2}, 3},
           {"cp 2", {.cp = 2}},
           {"ep 2", {.ep = 2}, 1, true},
           {"tp 2 dp 2 pp 2", {.tp = 2, .dp = 2, .pp = 2}},
       }) {
    CAPTURE(way.name);
    const std::vector<Seen> calm = run(way, 0);
    const std::vector<Seen> left = run(way, 3);
    for (size_t rank = 0; rank < calm.size(); ++rank) {
      CAPTURE(rank);
      CHECK(calm[rank].in_parts == calm[rank].whole);
      CHECK(calm[rank].asked == calm[0].asked);
      REQUIRE(calm[rank].asked.size() >= 4);
      CHECK(calm[rank].asked.front() == 0);
      CHECK(calm[rank].asked.back() < kWindows);
      CHECK(left[rank].left);
      // Three questions of the first, one of the second, which was not to begin.
      const std::vector<int64_t>& asked = left[rank].asked_until_left;
      REQUIRE(asked.size() == 4);
      CHECK(std::equal(asked.begin(), asked.begin() + 3, calm[0].asked.begin()));
      CHECK(left[rank].after_leaving == calm[0].whole);
      CHECK(left[rank].losses == calm[0].losses);
      CHECK(left[rank].last == calm[0].last);
    }
  }
}

TEST_CASE("a pipeline agrees so seldom that it seldom runs empty") {
  const auto questions = [](const Way& way) { return run(way, 0)[0].asked.size(); };
  CHECK(questions({"", {}}) == 13);         // 101 windows, batches of 8
  CHECK(questions({"", {.dp = 2}}) == 13);  // 51 each, of 4
  CHECK(questions({"", {.pp = 2}}) == 13);  // 8 passes for one that is idle
  CHECK(questions({"", {.pp = 4}}) == 5);   // 24 for three
  CHECK(questions({"", {.pp = 2, .virtual_stages = 2}}) == 13);
}

}  // namespace evaluation_parts_test
