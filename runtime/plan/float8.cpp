#include "runtime/plan/float8.h"

#include "common/float8.h"
#include "runtime/plan/shard_table.h"

namespace mtl {

std::vector<LocalLinear> layer_linears(const ModelShape& shape, int tp, int ep) {
  const int64_t h = shape.hidden;
  const int64_t context = shape.heads / tp * shape.value_dim();
  const int64_t ffn = shape.ffn / tp, up = shape.mlp_parts() * ffn;
  const int64_t dense = shape.dense_ffn() / tp;
  std::vector<LocalLinear> linears;
  const int64_t queries = shape.heads / tp * shape.head_dim;
  if (shape.has_latents()) {
    const ModelShape::Latent& latent = shape.latent;
    if (latent.q_rank > 0) linears.push_back({kLinearSlots[4], h, latent.q_rank});
    linears.push_back({kLinearSlots[5], latent.q_rank > 0 ? latent.q_rank : h, queries});
    linears.push_back({kLinearSlots[6], h, shape.latent_width()});
    linears.push_back({kLinearSlots[7], latent.kv_rank, shape.heads / tp * shape.latent_pair()});
  } else {
    linears.push_back(
        {kLinearSlots[0], h, queries + 2 * local_kv_heads(shape, tp) * shape.head_dim});
  }
  linears.push_back({kLinearSlots[1], context, h});
  if (dense > 0) {
    linears.push_back({kLinearSlots[2], h, shape.mlp_parts() * dense});
    linears.push_back({kLinearSlots[3], dense, h});
  }
  for (int64_t e = 0; e < shape.experts / ep; ++e) {
    linears.push_back({expert_slot(e, "up"), h, up, e, "up"});
    linears.push_back({expert_slot(e, "down"), ffn, h, e, "down"});
  }
  return linears;
}

std::vector<LocalLinear> float8_linears(const ModelShape& shape, int64_t seq, int tp, int ep) {
  std::vector<LocalLinear> linears = layer_linears(shape, tp, ep);
  const auto odd = [](int64_t size) { return size % kFloat8Multiple != 0; };
  // An expert's two are in FP8 together.
  const bool experts = !odd(shape.hidden) && !odd(shape.ffn / tp);
  std::erase_if(linears, [&](const LocalLinear& linear) {
    if (linear.expert >= 0) return !experts;
    return odd(seq) || odd(linear.in) || odd(linear.out);
  });
  return linears;
}

Float8Linears float8_kinds(const ModelShape& shape, int64_t seq, int tp) {
  Float8Linears kinds;
  bool* const of_slot[] = {&kinds.qkv,    &kinds.proj, &kinds.up,      &kinds.down,
                           &kinds.q_down, &kinds.q,    &kinds.kv_down, &kinds.kv};
  const int one_expert = static_cast<int>(std::max<int64_t>(1, shape.experts));
  for (const LocalLinear& linear : float8_linears(shape, seq, tp, one_expert)) {
    kinds.experts = kinds.experts || linear.expert >= 0;
    for (size_t i = 0; i < kLinearSlots.size(); ++i) {
      if (linear.slot == kLinearSlots[i]) *of_slot[i] = true;
    }
  }
  return kinds;
}

int64_t float8_filled_up(int64_t rows) {
  return (rows + kFloat8Multiple - 1) / kFloat8Multiple * kFloat8Multiple;
}

}  // namespace mtl
