// What a pipeline waits: two stages of one thread each on this machine's CPU, a step in each order
// of its micro-batches, against the time of the same work without waiting. The orders take turns,
// round after round, so that a neighbour on the machine disturbs all alike.
//   build/bench/pipeline [rounds=3] [steps=2] [dtype=bf16]
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "best_step.h"
#include "median.h"
#include "support/specs.h"

using namespace mtl;

namespace {

constexpr int64_t kMicroBatch = 4, kSeq = 128;
constexpr int64_t kVocab = 2048;  // a head that costs less than a layer: both stages work as much
constexpr int64_t kLayers = 4;
constexpr int64_t kMost = 8;  // micro-batches

struct Step {
  double seconds = 0, bubble = 0;  // as planned, of the work
};

Step step_of(const std::string& schedule, int64_t micro_batches, const std::string& dtype,
             int steps) {
  ResolvedSpec resolved;
  TrainSpec& spec = resolved.spec;
  spec = test::spec_with({.layers = kLayers,
                          .hidden = 768,
                          .heads = 12,
                          .global_batch = kMicroBatch * micro_batches,
                          .micro_batch = kMicroBatch,
                          .seq_len = kSeq,
                          .steps = 1000});
  spec.precision.dtype = dtype;
  spec.optimizer.type = "sgd";  // the least that a step may have beside its passes
  spec.parallel.pp = 2;
  spec.parallel.schedule = schedule;
  Diagnostics diagnostics;
  const Plan plan = make_plan(resolved, {.vocab = kVocab}, 2, diagnostics);
  diagnostics.throw_if_errors();
  return {.seconds = best_step_s(plan, spec, 2, 1, steps), .bubble = plan.largest().facts.bubble};
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 3;
  const int steps = argc > 2 ? std::atoi(argv[2]) : 2;
  const std::string dtype = argc > 3 ? argv[3] : "bf16";
  const std::vector<std::string> schedules = {"gpipe", "1f1b", "zb-h1"};
  const std::vector<int64_t> counts = {2, 4, kMost};
  std::map<std::pair<std::string, int64_t>, std::vector<double>> seconds;
  std::map<std::pair<std::string, int64_t>, double> planned;
  for (int round = 0; round < rounds; ++round) {
    for (const int64_t count : counts) {
      for (const std::string& schedule : schedules) {
        const Step step = step_of(schedule, count, dtype, steps);
        seconds[{schedule, count}].push_back(step.seconds);
        planned[{schedule, count}] = step.bubble;
      }
    }
  }
  // What one more micro-batch takes waits for nobody.
  const auto of = [&](const std::string& schedule, int64_t count) {
    return median_of(seconds[{schedule, count}]);
  };
  const double one = (of("1f1b", kMost) - of("1f1b", counts.front())) /
                     static_cast<double>(kMost - counts.front());
  fmt::print(
      "{} layers of 768 in two stages, {}, micro-batches of {} x {} tokens; one takes {:.0f} "
      "ms\n\n{:>13}  {:>10}  {:<8}  {:>8}  {:>10}  {:>7}  {:>8}\n",
      kLayers, dtype, kMicroBatch, kSeq, 1e3 * one, "micro-batches", "no waiting", "order", "s",
      "of 1F1B", "bubble", "planned");
  for (const int64_t count : counts) {
    const double ideal = one * static_cast<double>(count);
    for (const std::string& schedule : schedules) {
      const double median = of(schedule, count);
      fmt::print("{:>13}  {:>10.3f}  {:<8}  {:>8.3f}  {:>10.3f}  {:>5.1f} %  {:>6.1f} %\n", count,
                 ideal, schedule, median, median / of("1f1b", count), 100 * (median / ideal - 1),
                 100 * planned[{schedule, count}]);
    }
  }
  return 0;
}
