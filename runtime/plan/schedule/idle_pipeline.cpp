#include "runtime/plan/schedule/idle_pipeline.h"

#include <algorithm>

#include <fmt/format.h>

namespace mtl {

namespace {

// Narayanan et al. 2021 (arXiv 2104.04473), as a share of the whole step; with the gradients of
// weights in between a third of the bubble is left (schedule.h).
double idle_percent(int64_t stages, int64_t micro_batches, bool weights_later) {
  const double idle = static_cast<double>(stages - 1) / (weights_later ? 3 : 1);
  return 100 * idle / (static_cast<double>(micro_batches) + idle);
}

}  // namespace

void warn_of_idle_pipeline(const Plan& plan, const ResolvedSpec& resolved,
                           Diagnostics& diagnostics) {
  constexpr int64_t kPerStage = 4;  // micro-batches: less than a fifth of the time is idle
  const int64_t stages = plan.grid.sizes()[Axis::pp];
  const int64_t most = plan.largest().shape.micro_batches;
  const bool later = plan.largest().shape.weights_later;
  if (stages < 2 || most >= stages || plan.micro_batch < 2) return;
  const auto divides_all = [&](int64_t size) {
    const auto& phases = plan.batch.phases();
    return std::all_of(phases.begin(), phases.end(), [&](const BatchPhase& phase) {
      return phase.micro_batches * plan.micro_batch % size == 0;
    });
  };
  int64_t size = std::max<int64_t>(plan.micro_batch * most / (kPerStage * stages), 1);
  while (!divides_all(size)) --size;
  const int64_t better = plan.micro_batch * most / size;
  diagnostics.add(
      {.code = "schedule.idle",
       .what = fmt::format("a step has {} micro-batch{} for the {} stages of the pipeline, which "
                           "are idle {:.0f} % of the time",
                           most, most == 1 ? "" : "es", stages, idle_percent(stages, most, later)),
       .place = resolved.place_of("parallel.pp"),
       .help = fmt::format("with train.micro_batch={} a step has {}, and {:.0f} % are idle", size,
                           better, idle_percent(stages, better, later)),
       .severity = Diagnostic::Severity::warning});
}

}  // namespace mtl
