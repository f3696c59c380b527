#include "runtime/plan/forecast/estimate.h"

#include <algorithm>
#include <vector>

#include "runtime/plan/memory/master_type.h"
#include "runtime/plan/shard_table.h"

namespace mtl {

namespace {

ZeroEstimate zero_estimate(int stage, double parameters, double gpus, DType compute) {
  const bool mixed = compute != DType::f32;
  const double weights = mixed ? 2 : 4, optimizer = mixed ? 12 : 8;
  ZeroEstimate estimate;
  estimate.stage = stage;
  estimate.weights = parameters * weights / (stage >= 3 ? gpus : 1);
  estimate.gradients = parameters * (mixed ? 2 : 4) / (stage >= 2 ? gpus : 1);
  estimate.optimizer = parameters * optimizer / (stage >= 1 ? gpus : 1);
  const double moments = 8, master = static_cast<double>(master_bytes(compute));
  estimate.mtl = estimate.weights + parameters * 4 / (stage >= 2 ? gpus : 1) +
                 parameters * (moments + master) / (stage >= 1 ? gpus : 1);
  return estimate;
}

}  // namespace

MemoryEstimate estimate_memory(const ModelShape& shape, int64_t gpus, DType compute) {
  MemoryEstimate estimate;
  int64_t embedding = 0, block = 0;
  std::vector<int64_t> layers(static_cast<size_t>(shape.layers), 0);
  // Of all that there is to train; adapters in its place: mtl plan.
  for (const ParamRow& row : shard_table(shape.without_adapters(), false)) {
    estimate.parameters += row.numel();
    // The final norm stands before the head, and belongs to the body.
    const bool head = row.layer == shape.layers && row.shape.size() > 1;
    if (!head) estimate.body_parameters += row.numel();
    if (row.layer < 0) embedding = std::max(embedding, row.numel());
    if (row.layer < 0 || row.layer >= shape.layers) continue;
    int64_t& layer = layers[static_cast<size_t>(row.layer)];
    layer += row.numel();
    block = std::max(block, layer);
  }
  estimate.largest_layer = std::max(embedding, block);
  // Of each layer: who sees whom, a bit for each pair of positions, and one number.
  double masks = 0, block_mask = 0;
  if (shape.family() == Family::gpt2) {
    block_mask = static_cast<double>(shape.max_seq) * static_cast<double>(shape.max_seq) / 8 + 4;
    masks = block_mask * static_cast<double>(shape.layers);
  }
  const double total = 4.0 * static_cast<double>(estimate.body_parameters) + masks;
  const double largest =
      std::max(4.0 * static_cast<double>(embedding), 4.0 * static_cast<double>(block) + block_mask);
  estimate.dtypes = {{"float32", largest, total, 4 * total},
                     {"float16", largest / 2, total / 2, 2 * total},
                     {"int8", largest / 4, total / 4, std::nullopt},
                     {"int4", largest / 8, total / 8, std::nullopt}};
  for (int stage = 0; stage <= 3; ++stage) {
    estimate.zero.push_back(zero_estimate(stage, static_cast<double>(estimate.parameters),
                                          static_cast<double>(gpus), compute));
  }
  return estimate;
}

}  // namespace mtl
