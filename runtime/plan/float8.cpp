#include "runtime/plan/float8.h"

#include "common/float8.h"
#include "runtime/plan/shard_table.h"

namespace mtl {

std::vector<LocalLinear> layer_linears(const ModelShape& shape, int tp) {
  const int64_t h = shape.hidden;
  const int64_t context = shape.heads / tp * shape.head_dim;
  const int64_t qkv = context + 2 * local_kv_heads(shape, tp) * shape.head_dim;
  const int64_t ffn = shape.ffn / tp;
  return {{kLinearSlots[0], h, qkv},
          {kLinearSlots[1], context, h},
          {kLinearSlots[2], h, shape.mlp_parts() * ffn},
          {kLinearSlots[3], ffn, h}};
}

std::vector<LocalLinear> float8_linears(const ModelShape& shape, int64_t seq, int tp) {
  std::vector<LocalLinear> linears = layer_linears(shape, tp);
  std::erase_if(linears, [&](const LocalLinear& linear) {
    return seq % kFloat8Multiple != 0 || linear.in % kFloat8Multiple != 0 ||
           linear.out % kFloat8Multiple != 0;
  });
  return linears;
}

}  // namespace mtl
