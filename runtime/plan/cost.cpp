#include "runtime/plan/cost.h"

#include <algorithm>

namespace mtl {

namespace {

// Positions that a query sees on average, the diagonal counted half: the area under the causal
// mask, without the triangle that a window leaves out.
double seen_positions(const ModelShape& shape, int64_t seq) {
  const auto all = static_cast<double>(seq);
  if (shape.sliding_window == 0) return all / 2;
  const auto window = static_cast<double>(std::min(shape.sliding_window, seq));
  return window - window * window / (2 * all);
}

}  // namespace

double flops_per_token_of_layer(const ModelShape& shape, int64_t seq) {
  const auto h = static_cast<double>(shape.hidden);
  const auto q = static_cast<double>(shape.query_width());
  const auto kv = static_cast<double>(shape.kv_width());
  double mlp = static_cast<double>((shape.mlp_parts() + 1) * shape.active_ffn()) * h;
  // The router, and the gate.
  if (shape.experts > 0)
    mlp += h * static_cast<double>(shape.experts + (shape.shared_gate ? 1 : 0));
  const double attention = h * (q + 2 * kv) + q * h;
  return 6 * (mlp + attention) + 12 * q * seen_positions(shape, seq);
}

double flops_per_token_of_head(const ModelShape& shape) {
  return 6 * static_cast<double>(shape.hidden) * static_cast<double>(shape.vocab);
}

Cost cost(const ModelShape& shape, const std::vector<ParamRow>& table, int64_t seq) {
  Cost result;
  int64_t experts = 0;
  for (const ParamRow& row : table) {
    result.parameters += row.numel();
    if (row.slot.starts_with("mlp.expert")) experts += row.numel();
  }
  result.active_parameters = result.parameters;
  if (shape.experts > 0) {
    result.active_parameters -= experts / shape.experts * (shape.experts - shape.experts_per_token);
  }
  result.flops_per_token =
      static_cast<double>(shape.layers) * flops_per_token_of_layer(shape, seq) +
      flops_per_token_of_head(shape);
  return result;
}

}  // namespace mtl
