// Shapes of small models, and rows of their shard tables.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/plan/shard_table.h"

namespace mtl::test {

// A GPT-2: hidden = heads * head_dim; a vocabulary of 65 ids in 80 rows.
inline ModelShape small_shape(int64_t heads = 4, int64_t head_dim = 8) {
  ModelShape shape;
  shape.layers = 2;
  shape.heads = shape.kv_heads = heads;
  shape.head_dim = head_dim;
  shape.hidden = heads * head_dim;
  shape.ffn = 4 * shape.hidden;
  shape.vocab = 65;
  shape.vocab_pad_to = 16;
  shape.padded_vocab = 80;
  shape.max_seq = 12;
  return shape;
}

inline ModelShape small_llama(int64_t heads = 4, int64_t kv_heads = 2, int64_t head_dim = 8) {
  ModelShape shape = small_shape(heads, head_dim);
  shape.kv_heads = kv_heads;
  shape.norm = NormType::rmsnorm;
  shape.activation = Activation::swiglu;
  shape.position = PositionType::rope;
  shape.bias = shape.qkv_bias = false;
  return shape;
}

inline GridSizes tensor_parallel(int tp) {
  GridSizes sizes;
  sizes[Axis::tp] = tp;
  return sizes;
}

// nullptr if there is none.
inline const ParamRow* find_row(const std::vector<ParamRow>& table, int layer,
                                const std::string& slot) {
  for (const ParamRow& row : table) {
    if (row.layer == layer && row.slot == slot) return &row;
  }
  return nullptr;
}

inline const ParamRow& named(const std::vector<ParamRow>& table, const std::string& name) {
  for (const ParamRow& row : table) {
    if (row.name == name) return row;
  }
  throw std::logic_error("no row " + name);
}

}  // namespace mtl::test
