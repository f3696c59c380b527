// A plan that was made, as work and layout.
#include <algorithm>
#include <iterator>
#include <set>

#include "runtime/plan/forecast/forecast.h"

namespace mtl {

Workload workload_of(const Plan& plan) {
  Workload work;
  work.model = plan.model;
  work.seq = plan.seq;
  std::set<int64_t> batches;
  for (const BatchPhase& phase : plan.batch.phases()) batches.insert(phase.global_batch);
  work.global_batch = *batches.rbegin();
  work.other_batches.assign(batches.begin(), std::prev(batches.end()));
  work.total_tokens =
      static_cast<double>(plan.batch.first_sample(plan.steps)) * static_cast<double>(plan.seq);
  work.logits_rows = plan.logits_rows;
  work.ep_room = plan.ep_room;
  work.compute = plan.compute;
  work.optimizer = plan.optimizer;
  work.muon_steps = plan.muon_steps;
  work.offload = plan.offload;
  work.grad_reduce = plan.grad_reduce;
  return work;
}

namespace {

// Of each bucket that is whole in a window the layers; those of experts lie beside others.
std::vector<int64_t> layers_of_windows(const ParamLayout& params, int64_t model_layers) {
  std::vector<int64_t> layers;
  if (!params.shards_gradients()) return layers;
  int64_t first = -1;  // layer of the bucket before
  const auto begins = [&](int64_t layer) {
    if (first >= 0 && layer > first) layers.push_back(layer - first);
    first = layer;
  };
  for (const Bucket& bucket : params.buckets) {
    if (!bucket.experts) begins(bucket.layer);
  }
  begins(model_layers);
  return layers;
}

}  // namespace

LayoutChoice layout_of(const Plan& plan) {
  LayoutChoice layout;
  const GridSizes& sizes = plan.grid.sizes();
  layout.tp = sizes[Axis::tp];
  layout.pp = sizes[Axis::pp];
  layout.cp = sizes[Axis::cp];
  layout.ep = sizes[Axis::ep];
  layout.dp = sizes[Axis::dp];
  layout.copies = sizes.copies;
  layout.chunks = plan.largest().shape.chunks;
  layout.schedule = plan.largest().shape.kind;
  layout.group = plan.largest().shape.group;
  layout.weights_later = plan.largest().shape.weights_later;
  layout.sequence_parallel = plan.sequence_parallel;
  const ParamLayout& params = plan.stages.front().layout;
  layout.zero = params.zero;
  const bool adapters = static_cast<bool>(plan.model.lora);
  const int64_t layers = plan.model.layers;
  layout.window_layers = layers_of_windows(adapters ? plan.stages.front().frozen : params, layers);
  if (adapters) layout.adapter_window_layers = layers_of_windows(params, layers);
  layout.micro_batch = plan.micro_batch;
  layout.recompute = plan.recompute;
  layout.float8 = plan.float8;
  const int stages = layout.pp;
  layout.layers_of_virtual.assign(static_cast<size_t>(stages * layout.chunks), 0);
  for (int stage = 0; stage < stages; ++stage) {
    const std::vector<ChunkRange>& chunks = plan.stages[static_cast<size_t>(stage)].chunks;
    for (size_t chunk = 0; chunk < chunks.size(); ++chunk) {
      layout.layers_of_virtual[chunk * static_cast<size_t>(stages) + static_cast<size_t>(stage)] =
          chunks[chunk].layers;
    }
  }
  return layout;
}

}  // namespace mtl
