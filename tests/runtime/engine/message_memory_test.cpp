// What the plan says that messages between pipeline stages take of a GPU beside the arena, against
// what the NCCL transport takes for them.
#include <doctest/doctest.h>

#include "runtime/engine/on_fake_gpus.h"
#include "runtime/plan/memory/gpu_memory.h"
#include "support/specs.h"

using namespace mtl;
using namespace mtl::test;

namespace message_memory_test {

TEST_CASE("messages between stages take what the plan says") {
  constexpr int32_t kVocab = 61;
  const auto tokens = markov_tokens(4000, kVocab);
  // Numbers that go to the host and back, and the first bytes between two ranks.
  constexpr int64_t kSmall = 1 << 16;
  for (const Layout& layout : {Layout{.pp = 2}, Layout{.pp = 2, .virtual_stages = 2},
                               Layout{.pp = 4}, Layout{.tp = 2, .pp = 2}, Layout{.dp = 2}}) {
    TrainSpec spec = spec_with({.layers = 4, .micro_batch = 2, .seq_len = 64, .steps = 1});
    FakeGpus gpus;
    Plan plan;
    run_on_fake_gpus(spec, kVocab, layout, gpus, {}, [&](RankContext& rank) {
      rank.trainer.initialise();
      const Sampler sampler(tokens->size(), rank.plan.seq, SampleOrder::random, 11);
      rank.trainer.step(0, *tokens, sampler, {});
      if (rank.rank == 0) plan = rank.plan;
    });
    for (int rank = 0; rank < layout.world(); ++rank) {
      CAPTURE(layout.pp);
      CAPTURE(layout.virtual_stages);
      CAPTURE(rank);
      const StagePlan stage = plan.stage_of(rank);
      const int64_t messages = message_memory(plan, stage);
      CHECK((messages > 0) == (layout.pp > 1));
      const int64_t beside = gpus[static_cast<size_t>(rank)]->seen.bytes - stage.memory.total_bytes;
      CHECK(beside >= messages);
      CHECK(beside < messages + kSmall);
    }
  }
}

TEST_CASE("a rank has copies of as many messages as are worth it, and of two at least") {
  constexpr int64_t kMiB = 1 << 20;
  const auto slots = [](int64_t bytes) { return nccl_message_slots(bytes, kNcclBufferedBytes); };
  CHECK(slots(1) == 64);
  CHECK(slots(kMiB) == 64);
  CHECK(slots(8 * kMiB) == 8);
  CHECK(slots(22 * kMiB) == 2);
  CHECK(slots(100 * kMiB) == 2);
}

}  // namespace message_memory_test
