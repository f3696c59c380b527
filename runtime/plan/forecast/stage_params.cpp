#include "runtime/plan/forecast/stage_params.h"

#include <cmath>
#include <numeric>

#include "runtime/plan/cost.h"
#include "runtime/plan/float8.h"
#include "runtime/plan/param_layout.h"

namespace mtl {

namespace {

// Elements of what lies together in memory, in the order of the shard table; 0 where there is none.
struct LayerTensors {
  std::vector<double> dense;   // and behind them the experts, unless these lie apart
  std::vector<double> expert;  // of each
};

LayerTensors layer_tensors(const ModelShape& model, const LayoutChoice& layout) {
  const double h = static_cast<double>(model.hidden), tp = layout.tp;
  const double q = static_cast<double>(model.query_width()) / tp;
  const double kv = static_cast<double>(local_kv_heads(model, layout.tp) * model.head_dim);
  const double context = static_cast<double>(model.context_width()) / tp;
  const double ffn = static_cast<double>(model.ffn) / tp;
  const double shared = static_cast<double>(model.shared_ffn) / tp;
  const double parts = static_cast<double>(model.mlp_parts());
  const double bias = model.bias ? 1 : 0, qkv_bias = model.qkv_bias ? 1 : 0;
  const bool in_norms = model.bias || model.family() == Family::llama;  // shard_table.cpp
  const double norm_bias = model.norm == NormType::layernorm && in_norms ? h : 0;
  const double head_norm = model.qk_norm ? static_cast<double>(model.head_dim) : 0;
  const double sinks = model.attention_sinks ? static_cast<double>(model.heads) / tp : 0;
  const bool whole = model.qk_norm_whole;
  const double before = model.norms_inputs() ? 1 : 0, behind = model.norms_outputs() ? 1 : 0;
  LayerTensors tensors;
  tensors.dense = {before * h, before * norm_bias};
  const auto add = [&](std::initializer_list<double> more) {
    tensors.dense.insert(tensors.dense.end(), more);
  };
  if (model.has_latents()) {
    const auto q_rank = static_cast<double>(model.latent.q_rank);
    const auto kv_rank = static_cast<double>(model.latent.kv_rank);
    const double pairs = static_cast<double>(model.heads * model.latent_pair()) / tp;
    add({h * q_rank, q_rank, (q_rank > 0 ? q_rank : h) * q,
         h * static_cast<double>(model.latent_width()), kv_rank, kv_rank * pairs, sinks});
  } else {
    add({h * (q + 2 * kv), qkv_bias * (q + 2 * kv), sinks, whole ? q : head_norm,
         whole ? kv : head_norm});
  }
  add({context * h, bias * h, behind * h, behind * norm_bias, before * h, before * norm_bias});
  std::vector<double> mlp = {parts * h * ffn, bias * parts * ffn, h * ffn, bias * h};
  if (model.experts == 0) {
    tensors.dense.insert(tensors.dense.end(), mlp.begin(), mlp.end());
  } else {
    const auto experts = static_cast<double>(model.experts);
    for (const double of_all :
         {h * experts, bias * experts, parts * h * shared, h * shared, model.shared_gate ? h : 0}) {
      tensors.dense.push_back(of_all);
    }
    tensors.expert = std::move(mlp);
  }
  for (const double of_all : {behind * h, behind * norm_bias}) tensors.dense.push_back(of_all);
  return tensors;
}

double sum_of(const std::vector<double>& elements) {
  return std::accumulate(elements.begin(), elements.end(), 0.0);
}

// Behind tensors that are laid from `at` on, as add_bucket() of param_layout.cpp does (but for
// beginnings of cache lines).
double end_of(const std::vector<double>& tensors, double at) {
  const auto chunk = static_cast<double>(kSquaresChunk);
  for (const double numel : tensors) {
    if (numel == 0) continue;
    if (std::floor(at / chunk) != std::floor((at + numel - 1) / chunk)) {
      at = std::ceil(at / chunk) * chunk;
    }
    at += numel;
  }
  return at;
}

// What layers of these take more than their elements: the first, and each behind it.
double free_in(const std::vector<double>& tensors, int64_t experts,
               const std::vector<double>& expert, int64_t layers) {
  double first = 0, second = 0;
  for (double* at : {&first, &second}) {
    *at = end_of(tensors, first);
    for (int64_t i = 0; i < experts; ++i) *at = end_of(expert, *at);
  }
  const auto number = static_cast<double>(layers);
  const double each = sum_of(tensors) + static_cast<double>(experts) * sum_of(expert);
  return first + (number - 1) * (second - first) - number * each;
}

}  // namespace

StageParams layer_params(const ModelShape& model, const LayoutChoice& layout) {
  const LayerTensors tensors = layer_tensors(model, layout);
  return {.dense = sum_of(tensors.dense),
          .experts = sum_of(tensors.expert) * static_cast<double>(model.experts) / layout.ep};
}

StageParams padding_of_layers(const ModelShape& model, const LayoutChoice& layout, int64_t layers) {
  if (layers == 0) return {};
  const LayerTensors tensors = layer_tensors(model, layout);
  const int64_t experts = model.experts / layout.ep;
  if (layout.ep == 1) return {.dense = free_in(tensors.dense, experts, tensors.expert, layers)};
  return {.dense = free_in(tensors.dense, 0, {}, layers),
          .experts = free_in({}, experts, tensors.expert, layers)};
}

std::vector<std::vector<ChunkRange>> layout_chunks(const Workload& work,
                                                   const LayoutChoice& layout) {
  const int stages = layout.pp * layout.chunks;
  std::vector<int64_t> layers = layout.layers_of_virtual;
  if (layers.empty()) {
    layers = work.model.layers % stages == 0
                 ? std::vector<int64_t>(static_cast<size_t>(stages), work.model.layers / stages)
                 : balanced_stages(work.model, work.seq, stages);
  }
  return pipeline_layout(layers, layout.pp, layout.chunks);
}

StageParams trained_params(const Workload& work, const LayoutChoice& layout,
                           const std::vector<ChunkRange>& chunks) {
  if (!work.model.lora) return stage_params(work, layout, chunks);
  const LayerShapes shapes(work.model);
  StageParams sum;
  for (const ChunkRange& chunk : chunks) {
    for (int64_t layer = chunk.first_layer; layer < chunk.end_layer(); ++layer) {
      sum.dense += adapter_params(shapes.of(layer), layout);
    }
  }
  return sum;
}

double adapter_params(const ModelShape& model, const LayoutChoice& layout) {
  if (!model.lora) return 0;
  int64_t elements = 0;
  for (const LocalLinear& linear : layer_linears(model, layout.tp, layout.ep)) {
    if (model.lora.adapts(linear.slot)) elements += model.lora.rank * (linear.in + linear.out);
  }
  return static_cast<double>(elements);
}

StageParams stage_params(const Workload& work, const LayoutChoice& layout,
                         const std::vector<ChunkRange>& chunks) {
  const ModelShape& model = work.model;
  const StageParams mixture = layer_params(model, layout);
  const StageParams dense =
      model.dense_layers.empty() ? mixture : layer_params(model.of_dense_layers(), layout);
  const auto vocab = static_cast<double>(vocab_shard(model, layout.tp, 0).rows);
  const double table = vocab * static_cast<double>(model.hidden);
  StageParams sum;
  bool embedding = false, head = false;
  for (const ChunkRange& chunk : chunks) {
    const auto mixtures =
        static_cast<double>(model.mixtures_in(chunk.first_layer, chunk.end_layer()));
    const double others = static_cast<double>(chunk.layers) - mixtures;
    sum.dense += mixtures * mixture.dense + others * dense.dense;
    sum.experts += mixtures * mixture.experts + others * dense.experts;
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
    if (model.head_bias) sum.dense += vocab;
  }
  return sum;
}

}  // namespace mtl
