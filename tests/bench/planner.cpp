// The planner against the published world, and its advice against the guide's: planner [parts].
// Arithmetic only, the same everywhere; the tables of docs/benchmarks/planner.md. `parts`: where
// the time of each step goes.
#include <chrono>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "runtime/plan/forecast/cluster_simulation.h"
#include "runtime/plan/forecast/tune.h"
#include "support/published_runs.h"

using namespace mtl;
using namespace mtl::test;

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void published(const std::vector<PublishedRun>& runs, bool parts) {
  int within = 0, rows = 0, memory_within = 0, memories = 0;
  double sum = 0;
  std::string table;
  for (const PublishedRun& run : runs) {
    const Forecast plan = forecast(run.work, run.layout, cluster_of(run), run.software, true);
    const double model = predicted(run, plan), error = model / run.published - 1;
    ++rows;
    sum += std::abs(error);
    within += std::abs(error) <= 0.15 ? 1 : 0;
    if (run.table != table) {
      fmt::print(
          "\n**{}**\n\n| run | tp, pp, v, dp | b x m | published | planned | error |{}\n"
          "|---|---|---|---|---|---|{}\n",
          run.table, run.gib > 0 ? " GiB | planned | error |" : "",
          run.gib > 0 ? "---|---|---|" : "");
      table = run.table;
    }
    const auto value = [&](double v) {
      return run.measure == PublishedRun::Measure::tokens_per_s_gpu
                 ? fmt::format("{:.0f} tok/s", v)
                 : fmt::format("{:.1f} %", 100 * v);
    };
    const LayoutChoice& layout = plan.layout;
    fmt::print("| {}{} | {}, {}, {}, {} | {} x {} | {} | {} | {:+.1f} % |", run.name,
               run.calibrates ? " (calibrates)" : "", layout.tp, layout.pp, layout.chunks,
               layout.dp, layout.micro_batch, plan.micro_batches, value(run.published),
               value(model), 100 * error);
    if (run.gib > 0) {
      const double gib = plan.memory.total / (1 << 30), off = gib / run.gib - 1;
      fmt::print(" {:.1f} | {:.1f} | {:+.1f} % |", run.gib, gib, 100 * off);
      ++memories;
      memory_within += std::abs(off) <= 0.15 ? 1 : 0;
    }
    fmt::print("\n");
    if (!parts) continue;
    const StepTime& t = plan.time;
    const auto share = [&](double v) { return 100 * v / t.total; };
    fmt::print(
        "    {:.3g} s: matmul {:.1f} attention {:.1f} element-wise {:.1f} again {:.1f} tp "
        "{:.1f} pp {:.1f} bubble {:.1f} dp {:.1f} optimizer {:.1f} %\n",
        t.total, share(t.matmul), share(t.attention), share(t.memory_bound), share(t.recompute),
        share(t.tensor), share(t.pipeline), share(t.bubble), share(t.data), share(t.optimizer));
  }
  fmt::print("\n{} of {} rows within 15 %, mean error {:.1f} %; memory {} of {}\n", within, rows,
             100 * sum / rows, memory_within, memories);
}

void guide() {
  fmt::print(
      "\n| run | the guide's | MFU | ours | MFU | why not the guide's |\n"
      "|---|---|---|---|---|---|\n");
  for (const GuideRow& row : guide_rows()) {
    const Cluster& cluster = *find_cluster("h100-80g");
    const Forecast theirs = forecast(row.work, row.layout, cluster, software_mtl(), true);
    const Forecast ours = tune(row.work, row.layout.world(), cluster, {}).best.front().forecast;
    fmt::print("| {} | {} | {:.1f} % | {} | {:.1f} % | {} |\n", row.name,
               layout_words(theirs.layout), 100 * theirs.mfu, layout_words(ours.layout),
               100 * ours.mfu, verdict(theirs, ours, cluster));
  }
}

void speed() {
  const Cluster& cluster = *find_cluster("h100-80g");
  for (const GuideRow& row : guide_rows()) {
    if (row.layout.world() != 1024) continue;
    const auto start = std::chrono::steady_clock::now();
    const Tuning tuning = tune(row.work, 1024, cluster, {});
    fmt::print("\n--tune, {}: {} layouts, {:.2f} s\n", row.name, tuning.considered,
               seconds_since(start));
  }
  for (const PublishedRun& run : published_runs()) {
    if (run.layout.world() != 16384) continue;
    Stragglers stragglers;
    stragglers.jitter = 0.01;
    const auto start = std::chrono::steady_clock::now();
    const ClusterStep step = simulate_cluster(run.work, run.layout, cluster, stragglers);
    fmt::print("--simulate, {} all different: {} events, {:.2f} s\n", run.name, step.events,
               seconds_since(start));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool parts = argc > 1 && std::strcmp(argv[1], "parts") == 0;
  published(published_runs(), parts);
  published(held_out_runs(), parts);
  published(workstation_runs(), parts);
  published(own_runs(), parts);
  guide();
  speed();
  return 0;
}
