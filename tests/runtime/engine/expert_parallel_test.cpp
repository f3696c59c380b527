// Rows of tokens at the experts of several ranks: who has which, and what happens where they do not
// fit.
#include "runtime/model/expert_parallel.h"

#include <algorithm>

#include <doctest/doctest.h>

#include "support/layouts.h"
#include "support/specs.h"

using namespace mtl;
using namespace mtl::test;

namespace expert_parallel_test {

TEST_CASE("rows sorted by expert are a block for each rank in every round") {
  // Of two ranks with four experts: what their tokens have chosen. Rank 1 has experts 1 and 3.
  const std::vector<int32_t> counts = {5, 2, 0, 1, 3, 4, 1, 0};
  const RowCounts first(counts, 2, 0), second(counts, 2, 1);
  CHECK(first.own() == 8);
  CHECK(second.own() == 8);
  CHECK(first.arriving() == 5 + 0 + 3 + 1);
  CHECK(second.arriving() == 2 + 1 + 4 + 0);
  CHECK(first.most_arriving() == 9);
  CHECK(second.most_arriving() == 9);
  CHECK(first.of_expert(0) == 8);
  CHECK(first.of_expert(1) == 1);
  CHECK(second.of_expert(0) == 6);
  CHECK(second.of_expert(1) == 1);
  CHECK(first.sent(10) == std::vector<int64_t>{50, 20, 0, 10});
  CHECK(second.received(10) == std::vector<int64_t>{20, 40, 10, 0});
}

TEST_CASE("one rank has all experts") {
  const RowCounts alone({3, 0, 4}, 1, 0);
  CHECK(alone.own() == 7);
  CHECK(alone.arriving() == 7);
  CHECK(alone.of_expert(2) == 4);
}

TEST_CASE("tokens that choose unevenly within a sequence take smaller turns and nothing is lost") {
  constexpr int32_t kVocab = 65;
  TrainSpec spec =
      spec_with({.layers = 1, .heads = 2, .global_batch = 4, .micro_batch = 1, .steps = 10});
  spec.model.ffn = 48;
  use_llama_blocks(spec);
  spec.model.moe = {.experts = 8, .topk = 2};

  struct Result {
    double loss = 0, turns = 0;
    GlobalTensors gradients;
  };
  // All sequences begin with five times `first`, which go where it goes: eight of a half's tokens
  // are more than fit if both of its experts are of one rank, and four are not.
  const auto train = [&](int32_t first, double room) {
    const SyntheticTokens source(16 * 64 + 1, [first](int64_t i) {
      return i % 16 < 5 ? first : static_cast<int32_t>(i * i * 7 % kVocab);
    });
    const Sampler sampler(source.size(), 16, SampleOrder::sequential, 1);
    TrainSpec with = spec;
    with.parallel.ep_room = room;
    Result result;
    run_layout(with, kVocab, {.ep = 4}, [&](RankContext& rank) {
      rank.trainer.initialise();
      rank.trainer.gradients(0, source, sampler);
      collect(rank.trainer, Which::grad, result.gradients);
      const StepResult done = rank.trainer.step(0, source, sampler, {});
      if (rank.rank == 0) result.loss = done.loss, result.turns = done.moe_turns;
    });
    return result;
  };
  double most = 0;
  for (int32_t first = 0; first < 24; ++first) {
    CAPTURE(first);
    const Result some = train(first, 1), all = train(first, 1e6);
    most = std::max(most, some.turns);
    CHECK(all.turns == 1);
    CHECK(some.loss == doctest::Approx(all.loss).epsilon(1e-6));
    for (const auto& [name, gradient] : all.gradients) {
      CAPTURE(name);
      CHECK(relative_error(some.gradients.at(name), gradient) < 1e-5);
    }
  }
  CHECK(most > 2);
}

}  // namespace expert_parallel_test
