// The planner against the published world: planner. Arithmetic only, the same everywhere.
#include <cmath>

#include <fmt/format.h>

#include "support/published_runs.h"

using namespace mtl;
using namespace mtl::test;

int main() {
  int within = 0, rows = 0;
  std::string table;
  for (const PublishedRun& run : published_runs()) {
    const Cluster& cluster = *find_cluster(run.gpu);
    const Forecast plan = forecast(run.work, run.layout, cluster, run.software, true);
    const double model = predicted(run, plan);
    const double error = model / run.published - 1;
    ++rows;
    within += std::abs(error) <= 0.15 ? 1 : 0;
    if (run.table != table) {
      fmt::print("\n**{}**\n\n", run.table);
      fmt::print(
          "| run | tp pp v dp | b | m | published | planned | error | step s | matmul | "
          "attention | memory | again | tp | pp | bubble | dp | optimizer | GiB | planned | "
          "error |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
          "---|---|\n");
      table = run.table;
    }
    const bool tokens = run.measure == PublishedRun::Measure::tokens_per_s_gpu;
    const auto value = [&](double v) {
      return tokens ? fmt::format("{:.0f}", v) : fmt::format("{:.1f} %", 100 * v);
    };
    const StepTime& t = plan.time;
    const auto share = [&](double v) { return fmt::format("{:.1f} %", 100 * v / t.total); };
    const double gib = plan.memory.total / (1 << 30);
    fmt::print(
        "| {}{} | {} {} {} {} | {} | {} | {} | {} | {:+.1f} % | {:.3g} | {} | {} | {} | {} | "
        "{} | {} | {} | {} | {} | {} | {:.1f} | {} |\n",
        run.name, run.calibrates ? " (calibrates)" : "", plan.layout.tp, plan.layout.pp,
        plan.layout.chunks, plan.layout.dp, plan.layout.micro_batch, plan.micro_batches,
        value(run.published), value(model), 100 * error, t.total, share(t.matmul),
        share(t.attention), share(t.memory_bound), share(t.recompute), share(t.tensor),
        share(t.pipeline), share(t.bubble), share(t.data), share(t.optimizer),
        run.gib > 0 ? fmt::format("{:.1f}", run.gib) : "", gib,
        run.gib > 0 ? fmt::format("{:+.1f} %", 100 * (gib / run.gib - 1)) : "");
  }
  fmt::print("\n{} of {} rows within 15 %\n", within, rows);
  return 0;
}
