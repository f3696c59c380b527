#include "runtime/plan/cost.h"

#include <algorithm>

#include "runtime/plan/float8.h"
#include "runtime/plan/schedule/pipeline.h"

namespace mtl {

namespace {

// Positions that a query sees on average, the diagonal counted half: the area under the causal
// mask, without the triangle that a window leaves out.
double seen_positions(int64_t sliding_window, int64_t seq) {
  const auto all = static_cast<double>(seq);
  if (sliding_window == 0) return all / 2;
  const auto window = static_cast<double>(std::min(sliding_window, seq));
  return window - window * window / (2 * all);
}

double attention_flops(const ModelShape& shape, int64_t sliding_window, int64_t seq) {
  // Scores, and values by their weights; backward twice each.
  return 6 * static_cast<double>(shape.query_width() + shape.context_width()) *
         seen_positions(sliding_window, seq);
}

// Elements of the matrices that make queries, keys and values.
int64_t qkv_weights(const ModelShape& shape) {
  const int64_t h = shape.hidden, q = shape.query_width();
  if (!shape.has_latents()) return h * (q + shape.key_width() + shape.value_width());
  const ModelShape::Latent& latent = shape.latent;
  const int64_t queries = latent.q_rank > 0 ? latent.q_rank * (h + q) : h * q;
  return queries + h * shape.latent_width() + latent.kv_rank * shape.heads * shape.latent_pair();
}

// Forward, the gradient of what is multiplied, and that of the weight if it is trained.
double flops_per_weight(const ModelShape& shape) {
  return shape.lora ? 4 : 6;
}

int64_t adapter_weights(const ModelShape& shape) {
  int64_t weights = 0;
  for (const LocalLinear& linear : layer_linears(shape, 1, 1)) {
    if (shape.lora.adapts(linear.slot)) weights += shape.lora.rank * (linear.in + linear.out);
  }
  return weights;
}

// What one of ModelShape::full_layers has beyond a layer with the window.
double flops_beyond_window(const ModelShape& shape, int64_t seq) {
  return attention_flops(shape, 0, seq) - attention_flops(shape, shape.sliding_window, seq);
}

}  // namespace

double flops_per_token_of_layer(const ModelShape& shape, int64_t seq) {
  const auto h = static_cast<double>(shape.hidden);
  double mlp = static_cast<double>((shape.mlp_parts() + 1) * shape.active_ffn()) * h;
  // The router, and the gate.
  if (shape.experts > 0)
    mlp += h * static_cast<double>(shape.experts + (shape.shared_gate ? 1 : 0));
  const double attention =
      static_cast<double>(qkv_weights(shape) + shape.context_width() * shape.hidden);
  const double adapters = static_cast<double>(adapter_weights(shape));
  return flops_per_weight(shape) * (mlp + attention) + 6 * adapters +
         attention_flops(shape, shape.sliding_window, seq);
}

double flops_per_token_of_layers(const ModelShape& shape, int64_t seq, int64_t begin, int64_t end) {
  const int64_t mixtures = shape.mixtures_in(begin, end), dense = end - begin - mixtures;
  double flops = 0;
  if (mixtures > 0) flops += static_cast<double>(mixtures) * flops_per_token_of_layer(shape, seq);
  if (dense > 0) {
    flops += static_cast<double>(dense) * flops_per_token_of_layer(shape.of_dense_layers(), seq);
  }
  const auto full = static_cast<double>(shape.full_layers_in(begin, end));
  return flops + full * flops_beyond_window(shape, seq);
}

double flops_per_token_of_head(const ModelShape& shape) {
  return flops_per_weight(shape) * static_cast<double>(shape.hidden) *
         static_cast<double>(shape.vocab);
}

std::vector<int64_t> balanced_stages(const ModelShape& shape, int64_t seq, int virtual_stages) {
  const double head = flops_per_token_of_head(shape);
  if (shape.dense_layers.empty() && shape.full_layers.empty()) {
    const double layer = flops_per_token_of_layer(shape, seq);
    return balanced_layers(shape.layers, virtual_stages, head / layer);
  }
  std::vector<double> costs;
  for (int64_t i = 0; i < shape.layers; ++i) {
    costs.push_back(flops_per_token_of_layers(shape, seq, i, i + 1));
  }
  return balanced_layers(costs, virtual_stages, head);
}

Cost cost(const ModelShape& shape, const std::vector<ParamRow>& table, int64_t seq) {
  Cost result;
  int64_t experts = 0;
  for (const ParamRow& row : table) {
    result.parameters += row.numel();
    if (!row.frozen) result.trained += row.numel();
    if (row.expert >= 0) experts += row.numel();
  }
  result.active_parameters = result.parameters;
  if (shape.experts > 0) {
    result.active_parameters -= experts / shape.experts * (shape.experts - shape.experts_per_token);
  }
  result.flops_per_token =
      flops_per_token_of_layers(shape, seq, 0, shape.layers) + flops_per_token_of_head(shape);
  return result;
}

}  // namespace mtl
