#include "runtime/plan/cost.h"

namespace mtl {

Cost cost(const ModelShape& shape, const std::vector<ParamRow>& table, const GridSizes& sizes,
          const ParamLayout& layout, int64_t global_batch, int64_t micro_batch, int64_t seq,
          DType compute) {
  Cost result;
  for (const ParamRow& row : table) result.parameters += row.numel();
  result.tokens_per_step = global_batch * seq;
  const auto h = static_cast<double>(shape.hidden);
  const auto q = static_cast<double>(shape.heads * shape.head_dim);
  const auto kv = static_cast<double>(shape.kv_heads * shape.head_dim);
  const auto layers = static_cast<double>(shape.layers);
  const double matmul_parameters =
      layers * (2 * h * static_cast<double>(shape.ffn) + h * (q + 2 * kv) + q * h) +
      h * static_cast<double>(shape.vocab);
  result.flops_per_token = 6 * matmul_parameters + 6 * layers * q * static_cast<double>(seq);
  result.flops_per_step = result.flops_per_token * static_cast<double>(result.tokens_per_step);

  auto ring = [](int64_t bytes, int ranks) { return 2 * bytes * (ranks - 1) / ranks; };
  const int tp = sizes[Axis::tp], dp = sizes[Axis::dp];
  const int64_t micro_batches = global_batch / (micro_batch * dp);
  const int64_t tokens = micro_batch * seq;
  const int64_t activation = tokens * shape.hidden * bytes_of(compute);
  // Per micro-batch: embedding forward, two per layer forward and two backward, the head's
  // backward, and three floats per token for the cross-entropy.
  const int64_t per_micro_batch = (4 * shape.layers + 2) * ring(activation, tp) +
                                  ring(tokens * 4, tp) + ring(2 * tokens * 4, tp);
  const int64_t norm = ring((static_cast<int64_t>(table.size()) + 2) * 8, tp);
  result.tp_bytes_per_step = tp > 1 ? micro_batches * per_micro_batch + norm : 0;
  result.dp_bytes_per_step = dp > 1 ? ring(layout.total * 4, dp) + ring(24, dp) : 0;
  return result;
}

}  // namespace mtl
