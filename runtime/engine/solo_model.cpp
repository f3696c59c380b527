#include "runtime/engine/solo_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "runtime/engine/checkpointing.h"
#include "runtime/engine/rope_table.h"

namespace mtl {

namespace {

ChunkRange everything_of(const ModelShape& shape) {
  return {.layers = shape.layers, .embedding = true, .head = true};
}

ParamLayout layout_of(const ModelShape& shape, const std::vector<ParamRow>& table) {
  return param_layout(table, GridSizes{}, {everything_of(shape)}, shape.layers, 0,
                      std::numeric_limits<int64_t>::max(), false);
}

MemoryPlan memory_of(const ModelShape& shape, const std::vector<ParamRow>& table,
                     const ParamLayout& layout, int64_t context, int64_t pass_tokens) {
  MemoryNeeds needs;
  needs.chunks = {everything_of(shape)};
  needs.seq = std::min(context, pass_tokens);
  needs.context = context;
  needs.training = false;
  return memory_plan(shape, layout, needs, table.size());
}

}  // namespace

MemoryPlan solo_memory(const ModelShape& shape, int64_t context, int64_t pass_tokens) {
  const std::vector<ParamRow> table = shard_table(shape, false);
  return memory_of(shape, table, layout_of(shape, table), context, pass_tokens);
}

SoloModel::SoloModel(const ModelShape& shape, Device& device, int64_t context, int64_t pass_tokens)
    : shape_(shape),
      device_(device),
      context_tokens_(context),
      pass_tokens_(pass_tokens),
      table_(shard_table(shape_, false)),
      layout_(layout_of(shape_, table_)),
      memory_(memory_of(shape_, table_, layout_, context, pass_tokens)),
      base_(device.allocate(static_cast<size_t>(memory_.total_bytes))),
      arena_(memory_, base_),
      parameters_(table_, layout_, arena_),
      context_{device, tensor_parallel_, context_parallel_, expert_parallel_,
               shape_, arena_,           parameters_},
      chunk_(context_, everything_of(shape_)) {
  fill_rope_tables(arena_, device, shape_, context, context);
}

SoloModel::~SoloModel() {
  device_.free(base_);
}

void SoloModel::fill(
    const std::function<void(const ParamRow& row, const std::vector<int64_t>& shape,
                             Tensor weights)>& fill_one) {
  const Tensor weights = arena_.tensor("weights");
  for (const ParamPlacement& param : layout_.params) {
    fill_one(table_[param.row], param.shape, weights.slice(param.offset, param.numel));
  }
  for (const ParamRow& row : table_) {
    if (row.balances) fill_one(row, row.shape, expert_bias(arena_, row));
  }
}

void SoloModel::load(CheckpointReader& reader) {
  fill([&](const ParamRow& row, const std::vector<int64_t>& shape, Tensor weights) {
    CheckpointTensor tensor;
    tensor.name = row.name;
    tensor.shape = row.shape;
    tensor.local_shape = shape;
    tensor.rects = local_rects(row, GridSizes{}, Coord{});
    point_at(tensor, device_, weights);
    reader.read(tensor);
  });
}

std::vector<float> SoloModel::next_logits(std::span<const int32_t> ids, int64_t past) {
  const auto end = static_cast<int64_t>(ids.size());
  if (end > context_tokens_ || past >= end) {
    throw std::logic_error("a pass beyond the context of the memory plan");
  }
  Pass pass{.sequences = 1, .past = past, .losses = false};
  for (;; pass.past += pass.seq) {
    pass.seq = std::min(pass_tokens_, end - pass.past);
    device_.copy_from_host(arena_.get("tokens").in(0).slice(0, pass.seq), ids.data() + pass.past);
    chunk_.forward(pass);
    if (pass.past + pass.seq == end) break;
  }
  const Tensor logits = chunk_.logits(pass, pass.seq - 1).slice(0, shape_.vocab);
  std::vector<float> host(static_cast<size_t>(logits.numel()));
  device_.copy_to_host(host.data(), logits);
  if (const auto cap = static_cast<float>(shape_.logit_cap); cap > 0) {
    for (float& logit : host) logit = cap * std::tanh(logit / cap);
  }
  return host;
}

}  // namespace mtl
