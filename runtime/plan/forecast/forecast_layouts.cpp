// Which layouts there are for a model, and which of them this engine runs.
#include <fmt/format.h>

#include "runtime/plan/forecast/forecast.h"
#include "runtime/plan/rules/nearest.h"

namespace mtl {

bool runs_context(const ModelShape& model, const LayoutChoice& layout) {
  return layout.cp > 1 && heads_divide(model, layout.tp, layout.cp);
}

bool exchanges_heads(const ModelShape& model, const LayoutChoice& layout,
                     const Software& software) {
  return software.exchanges_heads && runs_context(model, layout);
}

std::vector<std::string> not_run_here(const ModelShape& model, const LayoutChoice& layout,
                                      const Cluster& cluster) {
  std::vector<std::string> parts;
  if (layout.cp > 1 && !runs_context(model, layout)) {
    parts.emplace_back("context parallelism of more ranks than heads");
  }
  if (layout.keep_every_second) parts.emplace_back("selective recompute by product");
  if (!cluster.cpu && layout.float8.on && cluster.gpu.fp8 == 0) {
    parts.emplace_back("FP8 on a GPU that multiplies none");
  }
  if (!cluster.cpu && cluster.gpu.major < 8) {
    parts.emplace_back("GPUs of a compute capability below 8.0");
  }
  return parts;
}

namespace {

std::string impossible_batch(int64_t batch, const LayoutChoice& layout) {
  const int64_t per_round = layout.micro_batch * layout.replicas();
  if (batch % per_round != 0) {
    return fmt::format("a batch of {} over {} replicas x {} per micro-batch", batch,
                       layout.replicas(), layout.micro_batch);
  }
  // As rules_batch.cpp.
  const int64_t stages = int64_t{layout.pp} * layout.chunks;
  if (batch / per_round > kMostForwards / stages) {
    return fmt::format("{} micro-batches per step through {} stages", batch / per_round, stages);
  }
  const int64_t group = layout.in_turn(), micro_batches = batch / per_round;
  const int64_t rest = micro_batches % group;
  if (layout.kind() == ScheduleKind::interleaved &&
      (micro_batches < group || (rest != 0 && rest < layout.pp))) {
    return fmt::format("{} micro-batches in groups of {} over {} stages", micro_batches, group,
                       layout.pp);
  }
  return {};
}

}  // namespace

std::string impossible(const Workload& work, const LayoutChoice& layout) {
  const ModelShape& model = work.model;
  if (model.heads % layout.tp != 0) {
    return fmt::format("{} heads over tp {}", model.heads, layout.tp);
  }
  if (model.kv_heads % layout.tp != 0 && layout.tp % model.kv_heads != 0) {
    return fmt::format("{} KV heads over tp {}", model.kv_heads, layout.tp);
  }
  if (model.ffn % layout.tp != 0) return fmt::format("ffn {} over tp {}", model.ffn, layout.tp);
  if (model.dense_layer_ffn % layout.tp != 0) {
    return fmt::format("ffn {} of dense layers over tp {}", model.dense_layer_ffn, layout.tp);
  }
  if (model.shared_ffn % layout.tp != 0) {
    return fmt::format("shared_ffn {} over tp {}", model.shared_ffn, layout.tp);
  }
  if (layout.pp * layout.chunks > model.layers) {
    return fmt::format("{} layers over {} stages", model.layers, layout.pp * layout.chunks);
  }
  if (layout.chunks > 1 && layout.pp == 1) return "virtual stages of one stage";
  // In a ring, a rank has two pieces, so that all have as much to do.
  const int pieces = layout.cp > 1 && !runs_context(model, layout) ? 2 * layout.cp : layout.cp;
  if (work.seq % pieces != 0) {
    return fmt::format("sequences of {} over cp {}", work.seq, layout.cp);
  }
  if (layout.sequence_parallel && work.seq / layout.cp % layout.tp != 0) {
    return fmt::format("sequences of {} over tp {}", work.seq, layout.tp);
  }
  if (layout.ep > 1 && (model.experts == 0 || model.experts % layout.ep != 0)) {
    return fmt::format("{} experts over ep {}", model.experts, layout.ep);
  }
  std::string of_batch = impossible_batch(work.global_batch, layout);
  for (size_t i = 0; of_batch.empty() && i < work.other_batches.size(); ++i) {
    of_batch = impossible_batch(work.other_batches[i], layout);
  }
  if (!of_batch.empty()) return of_batch;
  if (layout.zero > 1 && layout.pp > 1) {
    return fmt::format("ZeRO-{} with a pipeline", layout.zero);
  }
  return {};
}

}  // namespace mtl
