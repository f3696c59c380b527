// Shapes and plans of memory that its tests share.
#pragma once

#include "runtime/plan/memory/memory.h"
#include "runtime/plan/shape_124m.h"

namespace mtl::test {

inline ModelShape shape_moe() {
  ModelShape shape = shape_124m();
  shape.activation = Activation::swiglu;
  shape.norm = NormType::rmsnorm;
  shape.position = PositionType::rope;
  shape.bias = shape.qkv_bias = false;
  shape.experts = 8;
  shape.experts_per_token = 2;
  return shape;
}

// With every other part that a mixture may have.
inline ModelShape shape_mixture() {
  ModelShape shape = shape_moe();
  shape.moe_scores.sigmoid = true;
  shape.shared_ffn = 768;
  shape.shared_gate = true;
  shape.expert_bias = true;
  shape.dense_layers = {0, 7};
  shape.dense_layer_ffn = 1024;
  return shape;
}

inline ModelShape shape_neox() {
  ModelShape shape = shape_124m();
  shape.activation = Activation::gelu_exact;
  shape.position = PositionType::rope;
  shape.parallel_residual = true;
  return shape;
}

inline ModelShape shape_command() {
  ModelShape shape = shape_neox();
  shape.shared_norm = shape.head_bias = true;
  return shape;
}

inline ModelShape shape_olmo() {
  ModelShape shape = shape_124m();
  shape.norm_place = NormPlace::output;
  shape.qk_norm = shape.qk_norm_whole = true;
  return shape;
}

inline ParamLayout layout_of(const ModelShape& shape, int tp, int shards = 1) {
  GridSizes sizes;
  sizes[Axis::tp] = tp;
  sizes[Axis::dp] = shards;
  const ChunkRange everything{.layers = shape.layers, .embedding = true, .head = true};
  return param_layout(shard_table(shape, false), sizes, {everything}, shape.layers, 1, 1 << 30,
                      false);
}

inline MemoryPlan plan_of(const ModelShape& shape, MemoryNeeds needs) {
  if (needs.chunks.empty()) {
    needs.chunks = {{.layers = shape.layers, .embedding = true, .head = true}};
  }
  return memory_plan(shape, layout_of(shape, needs.tp), needs, shard_table(shape, false).size());
}

inline Recompute full(int64_t layers, bool distribute = false) {
  return {.full = Recompute::Full::uniform, .layers = layers, .distribute = distribute};
}

// Bytes of the arena.
struct Range {
  int64_t begin, end;
  bool operator&&(const Range& other) const { return begin < other.end && other.begin < end; }
};
inline Range range_of(const BufferPlan& buffer) {
  return {buffer.offset, buffer.offset + buffer.bytes};
}

}  // namespace mtl::test
