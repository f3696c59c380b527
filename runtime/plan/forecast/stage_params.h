// What the stages of a layout hold of a model, from its shape alone: layers, and how many
// parameters a rank has of them and of the room between them.
#pragma once

#include <vector>

#include "runtime/plan/forecast/forecast.h"

namespace mtl {

// Parameters of a rank of the stage that holds these chunks: those of experts apart.
struct StageParams {
  double dense = 0, experts = 0;
  double sum() const { return dense + experts; }
};
// Of the model, without adapters (ModelShape::lora).
StageParams stage_params(const Workload& work, const LayoutChoice& layout,
                         const std::vector<ChunkRange>& chunks);
// Of what is trained: of adapters alone where the model has them.
StageParams trained_params(const Workload& work, const LayoutChoice& layout,
                           const std::vector<ChunkRange>& chunks);
// Of the adapters of one layer.
double adapter_params(const ModelShape& model, const LayoutChoice& layout);
// Of one layer, a mixture if the model has experts.
StageParams layer_params(const ModelShape& model, const LayoutChoice& layout);
// Elements that param_layout() leaves free in so many layers, one behind the other: a tensor that
// would cross into another chunk of the gradient norm begins there.
StageParams padding_of_layers(const ModelShape& model, const LayoutChoice& layout, int64_t layers);

// The layers of each virtual stage as the layout says, or as evenly as they divide.
std::vector<std::vector<ChunkRange>> layout_chunks(const Workload& work,
                                                   const LayoutChoice& layout);

}  // namespace mtl
