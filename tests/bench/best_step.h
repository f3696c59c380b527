// Steps of the engine on this machine's CPUs, timed: ranks are threads of this process.
#pragma once

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <vector>

#include "runtime/comm/rank_threads.h"
#include "runtime/engine/trainer.h"
#include "spread_tokens.h"

namespace mtl {

// Seconds of the best of `steps`, behind one that builds caches and touches memory.
inline double best_step_s(const Plan& plan, const TrainSpec& spec, int ranks, int threads_of_each,
                          int steps) {
  double best = std::numeric_limits<double>::infinity();
  const auto body = [&](CommWorld& world) {
    const auto device = make_cpu_device(threads_of_each);
    std::vector<int> everybody(static_cast<size_t>(world.size()));
    std::iota(everybody.begin(), everybody.end(), 0);
    const auto all = world.group(everybody);
    Trainer trainer(plan, spec, *device, world);
    trainer.initialise();
    const SpreadTokens source(plan.model.vocab);
    const Sampler sampler(source.size(), plan.seq, SampleOrder::random, 1);
    for (int step = 0; step <= steps; ++step) {
      all->barrier();
      const auto start = std::chrono::steady_clock::now();
      trainer.step(step, source, sampler, {});
      all->barrier();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      if (step > 0 && world.rank() == 0) best = std::min(best, took.count());
    }
  };
  if (ranks == 1) {
    body(*make_self_world());
  } else {
    run_rank_threads(ranks, body);
  }
  return best;
}

}  // namespace mtl
