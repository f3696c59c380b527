#include "runtime/engine/stage_links.h"

#include <vector>

#include <doctest/doctest.h>

#include "runtime/comm/rank_threads.h"

using namespace mtl;

namespace stage_links_test {

namespace {

Plan two_stages() {
  ResolvedSpec resolved;
  TrainSpec& spec = resolved.spec;
  spec.model.layers = 2;
  spec.model.hidden = 16;
  spec.model.heads = 2;
  spec.parallel.pp = 2;
  spec.train.global_batch = 2;
  spec.train.micro_batch = 1;
  spec.train.seq_len = 8;
  spec.train.steps = 1;
  Diagnostics diagnostics;
  Plan plan = make_plan(resolved, {.vocab = 16}, 2, diagnostics);
  diagnostics.throw_if_errors();
  return plan;
}

}  // namespace

TEST_CASE("stages that send to each other at once both receive whatever the size of the message") {
  // More than the transport buffers between two ranks: a send ends only when the other receives.
  constexpr int64_t kLarge = (72 << 20) / 4;
  const Plan plan = two_stages();
  for (const bool overlap : {true, false}) {
    for (const int64_t numel : {int64_t{100}, kLarge}) {
      CAPTURE(overlap);
      CAPTURE(numel);
      run_rank_threads(2, [&](CommWorld& world) {
        const RankGroups groups(plan, world);
        StageLinks links(groups, overlap, nullptr);
        std::vector<float> out(static_cast<size_t>(numel), 1.0f + static_cast<float>(world.rank()));
        std::vector<float> in(out.size());
        const Tensor sent(out.data(), DType::f32, {numel}),
            received(in.data(), DType::f32, {numel});
        for (const Link link : {Link::activations, Link::gradients}) {
          links.send(link, sent);
          links.recv(link, received);
          links.sent(link);
          const auto peer = 2.0f - static_cast<float>(world.rank());
          const bool right = in.front() == peer && in.back() == peer;
          CHECK(right);
          in.assign(in.size(), 0);
        }
      });
    }
  }
}

}  // namespace stage_links_test
