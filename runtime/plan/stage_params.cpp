#include "runtime/plan/stage_params.h"

#include "runtime/plan/cost.h"

namespace mtl {

StageParams layer_params(const ModelShape& model, const LayoutChoice& layout) {
  const double h = static_cast<double>(model.hidden), tp = layout.tp;
  const double q = static_cast<double>(model.query_width()) / tp;
  const double kv = static_cast<double>(local_kv_heads(model, layout.tp) * model.head_dim);
  const double ffn = static_cast<double>(model.ffn) / tp;
  const double parts = static_cast<double>(model.mlp_parts());
  const bool layernorm = model.norm == NormType::layernorm;
  StageParams params;
  params.dense = h * (q + 2 * kv) + q * h + 2 * h * (layernorm ? 2 : 1);
  if (model.qkv_bias) params.dense += q + 2 * kv;
  if (model.qk_norm) params.dense += 2.0 * static_cast<double>(model.head_dim);
  if (model.bias) params.dense += h;
  double mlp = (parts + 1) * h * ffn;
  if (model.bias) mlp += parts * ffn + h;
  if (model.experts > 0) {
    params.experts = mlp * static_cast<double>(model.experts) / layout.ep;
    params.dense += h * static_cast<double>(model.experts + (model.shared_gate ? 1 : 0));
    params.dense += (parts + 1) * h * static_cast<double>(model.shared_ffn) / tp;
  } else {
    params.dense += mlp;
  }
  return params;
}

std::vector<std::vector<ChunkRange>> layout_chunks(const Workload& work,
                                                   const LayoutChoice& layout) {
  const int stages = layout.pp * layout.chunks;
  std::vector<int64_t> layers = layout.layers_of_virtual;
  if (layers.empty()) {
    const double head =
        flops_per_token_of_head(work.model) / flops_per_token_of_layer(work.model, work.seq);
    layers = work.model.layers % stages == 0
                 ? std::vector<int64_t>(static_cast<size_t>(stages), work.model.layers / stages)
                 : balanced_layers(work.model.layers, stages, head);
  }
  return pipeline_layout(layers, layout.pp, layout.chunks);
}

StageParams stage_params(const Workload& work, const LayoutChoice& layout,
                         const std::vector<ChunkRange>& chunks) {
  const StageParams layer = layer_params(work.model, layout);
  const ModelShape& model = work.model;
  const double table = static_cast<double>(vocab_shard(model, layout.tp, 0).rows * model.hidden);
  StageParams sum;
  bool embedding = false, head = false;
  for (const ChunkRange& chunk : chunks) {
    sum.dense += static_cast<double>(chunk.layers) * layer.dense;
    sum.experts += static_cast<double>(chunk.layers) * layer.experts;
    embedding = embedding || chunk.embedding;
    head = head || chunk.head;
  }
  const double h = static_cast<double>(model.hidden);
  if (embedding) {
    sum.dense += table;
    if (model.position == PositionType::learned) {
      sum.dense += static_cast<double>(model.max_seq) * h;
    }
  }
  if (head) {
    sum.dense += h * (model.norm == NormType::layernorm ? 2 : 1);
    if (!model.tie_embeddings || !embedding) sum.dense += table;
  }
  return sum;
}

}  // namespace mtl
