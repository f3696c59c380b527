// Seconds and bytes that a layer, a stage and a step spend on links.
#pragma once

#include "runtime/plan/forecast_compute.h"

namespace mtl {

// Of one layer and micro-batch, on the critical path; `wire`: bytes a rank sends.
struct LayerLinks {
  double tensor_forward = 0, tensor_backward = 0, tensor_again = 0;
  double context_forward = 0, context_backward = 0, context_again = 0;
  double expert_forward = 0, expert_backward = 0, expert_again = 0;
  double tensor_wire = 0, context_wire = 0, expert_wire = 0;
};
LayerLinks layer_links(const Workload& work, const LayoutChoice& layout, const Cluster& cluster,
                       const Software& software, const PassWork& pass);
// A layer of a run, and the like of it: in FP8, or in the compute type beside.
struct LayerKind {
  PassWork work;
  LayerLinks links;
};
struct LayerKinds {
  LayerKind in_float8;  // where the layout has such layers
  LayerKind plain;      // where it has others
};
LayerKinds layer_kinds(const Workload& work, const LayoutChoice& layout, const Cluster& cluster,
                       const Software& software);

// Embedding and head: what TP sums and gathers there, forward and backward together.
double ends_tensor_time(const Workload& work, const LayoutChoice& layout, const Cluster& cluster,
                        bool embedding, bool head);

// Parameters of a rank of the stage that holds these chunks: those of experts apart.
struct StageParams {
  double dense = 0, experts = 0;
  double sum() const { return dense + experts; }
};
StageParams stage_params(const Workload& work, const LayoutChoice& layout,
                         const std::vector<ChunkRange>& chunks);
// Of one layer.
StageParams layer_params(const ModelShape& model, const LayoutChoice& layout);

// The layers of each virtual stage as the layout says, or as evenly as they divide.
std::vector<std::vector<ChunkRange>> layout_chunks(const Workload& work,
                                                   const LayoutChoice& layout);

}  // namespace mtl
