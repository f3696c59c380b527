// Seconds of what a run does beside its steps: evaluations, texts, checkpoints.
#include <algorithm>

#include "runtime/plan/forecast/forecast_compute.h"
#include "runtime/plan/forecast/forecast_matrices.h"
#include "runtime/plan/forecast/stage_params.h"

namespace mtl {

namespace {

// Of so many forward passes, one behind the other through all stages; the slowest sets the pace.
double forward_passes(const Workload& work, const LayoutChoice& layout, const Cluster& cluster,
                      Software software, int64_t passes) {
  software.head_in_forward = false;  // nothing of a gradient is made
  double slowest = 0;
  for (const StageTimes& stage : stage_times(work, layout, cluster, software)) {
    slowest = std::max(slowest, stage.forward());
  }
  return static_cast<double>(passes + layout.pp - 1) * slowest;
}

int64_t passes_of(int64_t sequences, const LayoutChoice& layout) {
  const int64_t share = (sequences + layout.replicas() - 1) / layout.replicas();
  return (share + layout.micro_batch - 1) / layout.micro_batch;
}

// Of a checkpoint, on the rank that has most of it: masters and moments, f32, which those that hold
// a parameter write by turns.
double saved_bytes(const Workload& work, const LayoutChoice& layout) {
  const bool muon = work.optimizer == OptimizerKind::muon;
  const double moments = moments_of(work.optimizer);
  const double holders = layout.cp * layout.dp;
  double most = 0;
  const auto share = [&](double dense, double experts) {
    return dense / (holders * layout.ep) + experts / holders;
  };
  for (const std::vector<ChunkRange>& chunks : layout_chunks(work, layout)) {
    const StageParams params = trained_params(work, layout, chunks);
    double saved = (1 + moments) * share(params.dense, params.experts);
    if (muon) {
      const StageMatrices matrices = stage_matrices(work, layout, chunks);
      saved -= share(matrices.dense, matrices.experts);
    }
    most = std::max(most, saved);
  }
  return 4 * most;
}

}  // namespace

BesideSeconds beside_seconds(const Workload& work, const LayoutChoice& layout,
                             const Cluster& cluster, const Software& software,
                             const StepTime& time) {
  BesideSeconds seconds;
  const BesideSteps& beside = work.beside;
  // Of a micro-batch the weights are gathered twice and the gradients scattered once.
  const auto micro_batches =
      static_cast<double>(work.global_batch / (layout.micro_batch * layout.replicas()));
  const double gathered = layout.zero == 3 ? time.data / micro_batches / 3 : 0;
  for (const int64_t sequences : beside.eval_sets) {
    const int64_t passes = passes_of(sequences, layout);
    seconds.evaluation += forward_passes(work, layout, cluster, software, passes) +
                          static_cast<double>(passes) * gathered;
  }
  if (beside.texts > 0) {
    Workload short_ones = work;
    short_ones.seq = std::clamp<int64_t>(beside.text_room, layout.cp, work.seq);
    LayoutChoice passed = layout;
    passed.micro_batch =
        std::min(layout.micro_batch, (beside.texts + layout.replicas() - 1) / layout.replicas());
    const int64_t passes = passes_of(beside.texts, passed);
    seconds.texts = static_cast<double>(beside.text_tokens) *
                    (forward_passes(short_ones, passed, cluster, software, passes) +
                     static_cast<double>(passes) * gathered);
  }
  const double bytes = saved_bytes(work, layout);
  const double of_node = bytes * std::min(layout.world(), cluster.gpus_per_node);
  const double written = of_node / cluster.file_rate;
  const double copied = cluster.cpu ? stream_time(cluster, 2 * bytes)
                                    : bytes / (cluster.gpu.host_rate * cluster.host_share);
  seconds.last_save = written + (beside.async ? copied : 0);
  // One begins when the one before has ended.
  const double between = static_cast<double>(beside.save_every) * time.total;
  seconds.save = beside.async ? copied + std::max(0.0, written - between) : written;
  return seconds;
}

}  // namespace mtl
