// Planned against measured steps of the engine on this machine's CPUs: plan_cpu [rounds=5].
// Two ranks of one thread each, threads of one process; the rates that plans are made from (a large
// matmul and a triad) are measured before every row, with both threads busy, because such machines
// change speed from minute to minute. Memory: planned in closed form against the arena.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "best_step.h"
#include "runtime/device/cpu/calibrate.h"
#include "runtime/device/cpu/threads.h"
#include "runtime/plan/forecast/forecast.h"
#include "support/specs.h"

using namespace mtl;

namespace {

constexpr int64_t kVocab = 4096;

struct Row {
  std::string name;
  int world = 1;
  std::function<void(TrainSpec&)> set;
};

TrainSpec base() {
  return test::spec_with(
      {.layers = 8, .hidden = 256, .global_batch = 16, .seq_len = 128, .steps = 1000});
}

Plan plan_of(const TrainSpec& spec, int world) {
  ResolvedSpec resolved;
  resolved.spec = spec;
  Diagnostics diagnostics;
  Plan plan = make_plan(resolved, {.vocab = kVocab}, world, diagnostics);
  diagnostics.throw_if_errors();
  return plan;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  const std::vector<Row> rows = {
      {"1 rank", 1, [](TrainSpec&) {}},
      {"1 rank, bf16", 1, [](TrainSpec& s) { s.precision.dtype = "bf16"; }},
      {"1 rank, full recompute", 1, [](TrainSpec& s) { s.recompute.mode = "full"; }},
      {"dp 2 (ZeRO-1)", 2, [](TrainSpec&) {}},
      {"dp 2 (ZeRO 0)", 2, [](TrainSpec& s) { s.parallel.zero = 0; }},
      {"dp 2, bf16", 2, [](TrainSpec& s) { s.precision.dtype = "bf16"; }},
      {"tp 2 (sequence parallel)", 2, [](TrainSpec& s) { s.parallel.tp = 2; }},
      {"tp 2 (replicated stream)", 2,
       [](TrainSpec& s) {
         s.parallel.tp = 2;
         s.parallel.sp = "false";
       }},
      {"pp 2", 2, [](TrainSpec& s) { s.parallel.pp = 2; }},
      {"pp 2 x 2 chunks", 2,
       [](TrainSpec& s) {
         s.parallel.pp = 2;
         s.parallel.virtual_stages = 2;
       }},
      {"pp 2, full recompute", 2,
       [](TrainSpec& s) {
         s.parallel.pp = 2;
         s.recompute.mode = "full";
       }},
  };
  fmt::print(
      "8 layers, hidden 256, sequences of 128, vocabulary {}, batch 16; the best of {} rounds\n\n"
      "| layout | matmul GFLOP/s | memory GB/s | planned ms | measured ms | error | memory "
      "planned MB | arena MB | error |\n|---|---|---|---|---|---|---|---|---|\n",
      kVocab, rounds);
  int within = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    TrainSpec spec = base();
    row.set(spec);
    const Plan plan = plan_of(spec, row.world);
    // The best of each: what an undisturbed machine does.
    double flops = 0, bytes = 0, real = 1e30;
    for (int round = 0; round < rounds; ++round) {
      // Rates of one rank while as many compute as there are ranks.
      use_threads(row.world);
      flops = std::max(flops, measure_matmul_rate(plan.compute, 0.05) / row.world);
      bytes = std::max(bytes, measure_memory_rate(0.05) / row.world);
      real = std::min(real, best_step_s(plan, spec, row.world, 1, 3));
    }
    const Cluster cluster = cpu_cluster(flops, bytes, row.world);
    const Forecast foreseen =
        forecast(workload_of(plan), layout_of(plan), cluster, software_mtl(), true);
    const StepTime& last = foreseen.time;
    const double planned = last.total, error = planned / real - 1;
    within += std::abs(error) <= 0.15 ? 1 : 0;
    const double arena = static_cast<double>(plan.peak_bytes());
    const double closed = forecast_memory(workload_of(plan), layout_of(plan)).total;
    fmt::print(
        "| {} | {:.0f} | {:.1f} | {:.0f} | {:.0f} | {:+.1f} % | {:.1f} | {:.1f} | {:+.2f} % "
        "|\n",
        row.name, flops / 1e9, bytes / 1e9, 1e3 * planned, 1e3 * real, 100 * error, closed / 1e6,
        arena / 1e6, 100 * (closed / arena - 1));
    if (std::getenv("PARTS") != nullptr) {
      fmt::print(
          "  matmul {:.1f} attention {:.1f} element-wise {:.1f} again {:.1f} tensor {:.1f} "
          "pipeline {:.1f} bubble {:.1f} data {:.1f} optimizer {:.1f} ms\n",
          1e3 * last.matmul, 1e3 * last.attention, 1e3 * last.memory_bound, 1e3 * last.recompute,
          1e3 * last.tensor, 1e3 * last.pipeline, 1e3 * last.bubble, 1e3 * last.data,
          1e3 * last.optimizer);
    }
    std::fflush(stdout);
  }
  fmt::print("\n{} of {} within 15 %\n", within, rows.size());
  return 0;
}
