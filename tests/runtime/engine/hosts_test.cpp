// Where the ranks are never changes the model either: two hosts give the bits of one.
#include <doctest/doctest.h>

#include "runtime/comm/world.h"
#include "support/layouts.h"
#include "support/specs.h"
#include "support/two_hosts.h"

using namespace mtl;
using namespace mtl::test;

namespace hosts_test {

namespace {

constexpr int32_t kVocab = 65;

struct Trained {
  GlobalTensors masters;
  std::vector<double> losses;
};

Trained train(Layout layout, const char* compute, const MakeWorld& make_world) {
  TrainSpec spec = spec_with({.hidden = 64, .seq_len = 32, .steps = 5});
  spec.train.seed = 7;
  spec.precision.dtype = compute;
  if (layout.ep > 1) {
    spec.model.activation = "swiglu";
    spec.model.bias = false;
    spec.model.moe = {.experts = 4, .topk = 2};
  }
  const auto source = markov_tokens(20'000, kVocab);
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, spec.train.seed);
  Trained result;
  run_layout(
      spec, kVocab, layout,
      [&](RankContext& rank) {
        rank.trainer.initialise();
        for (int64_t step = 0; step < spec.train.steps; ++step) {
          const StepResult done = rank.trainer.step(step, *source, sampler, {});
          if (rank.rank == 0) result.losses.push_back(done.loss);
        }
        collect(rank.trainer, Which::master, result.masters);
      },
      0, make_world);
  return result;
}

std::unique_ptr<CommWorld> on_two_hosts(Store& store, int rank, int size) {
  TwoHosts hosts(store, rank >= size / 2);
  return make_cpu_world(hosts, {.rank = rank,
                                .size = size,
                                .token = "a token of the tests",
                                .timeout = std::chrono::minutes(5)});
}

}  // namespace

TEST_CASE("a model on two hosts has the bits of the same layout on one") {
  for (const Layout layout :
       {Layout{2, 2, 1}, Layout{1, 2, 2}, Layout{1, 4, 1}, Layout{.cp = 2}, Layout{.ep = 4}}) {
    for (const char* compute : {"fp32", "bf16"}) {
      CAPTURE(layout.tp);
      CAPTURE(layout.pp);
      CAPTURE(std::string(compute));
      const Trained one = train(layout, compute, {});
      const Trained two = train(layout, compute, on_two_hosts);
      CHECK(one.losses.size() == 5);
      CHECK(one.losses == two.losses);
      CHECK(one.masters == two.masters);
    }
  }
}

}  // namespace hosts_test
