#include "runtime/plan/memory/memory.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "runtime/plan/memory/master_type.h"
#include "runtime/plan/memory/memory_builder.h"

namespace mtl {

namespace {

// FP8 copies of weights; generation has none, it is in f32. Where weights are whole only while they
// are used, layers take turns with two sets of copies, as the weights do.
void add_float8_weights(ArenaBuilder& arena, const ModelShape& shape, const ParamLayout& layout,
                        const MemoryNeeds& needs) {
  const LayerShapes shapes(shape);
  std::vector<std::pair<int64_t, std::vector<LocalLinear>>> layers;
  for (const ChunkRange& chunk : needs.chunks) {
    for (int64_t layer = chunk.first_layer; layer < chunk.end_layer(); ++layer) {
      if (!needs.float8.holds(shape, layer)) continue;
      std::vector<LocalLinear> linears =
          float8_linears(shapes.of(layer), needs.share(), needs.tp, needs.ep);
      if (!linears.empty()) layers.emplace_back(layer, std::move(linears));
    }
  }
  const size_t sets = layout.shards_weights() ? 2 : 1;
  for (size_t set = 0; set < sets; ++set) {
    const int64_t begin = arena.at();
    for (size_t turn = set; turn < layers.size(); turn += sets) {
      if (sets > 1) arena.go_to(begin);
      const auto& [layer, linears] = layers[turn];
      // First, so that a set is known by where these are (Float8Weights), whatever kind of layer
      // has it.
      arena.add(layer_buffer(layer, kFloat8Amax), DType::f32,
                {static_cast<int64_t>(linears.size())});
      for (const LocalLinear& linear : linears) {
        const std::string name = layer_buffer(layer, linear.slot.c_str());
        arena.add(name + kFloat8Forward, DType::f8_e4m3, {linear.out, linear.in});
        arena.add(name + kFloat8Backward, DType::f8_e4m3, {linear.in, linear.out});
        arena.add(name + kFloat8Inverse, DType::f32, {1});
      }
    }
    arena.go_to_end();
  }
}

}  // namespace

const char* category_name(MemoryCategory category) {
  static constexpr std::array kNames = {"weights", "gradients", "optimizer", "activations",
                                        "scratch"};
  return kNames[static_cast<size_t>(category)];
}

const BufferPlan* MemoryPlan::find(const std::string& name) const {
  auto it = index.find(name);
  return it == index.end() ? nullptr : &buffers[it->second];
}

std::string layer_buffer(int64_t layer, const char* name) {
  return fmt::format("layer{}.{}", layer, name);
}

std::string stream_after(const ModelShape& shape, const ChunkRange& chunk, int64_t layer) {
  if (layer + 1 == shape.layers && chunk.head) return "head.input";
  return layer + 1 < chunk.end_layer() ? layer_buffer(layer + 1, "attn.input") : kChunkOutput;
}

MemoryPlan memory_plan(const ModelShape& shape, const ParamLayout& layout, const MemoryNeeds& needs,
                       size_t table_rows) {
  ArenaBuilder arena;
  auto begin = [&](MemoryCategory category) {
    arena.category = category;
    return arena.at();
  };
  int64_t from = begin(MemoryCategory::weights);
  arena.add("weights", needs.compute, {layout.weights_total()});
  if (layout.shards_weights()) {
    arena.add("weight_shards", needs.compute, {layout.shard_total()});
  }
  if (needs.frozen > 0) arena.add(kFrozen, needs.compute, {needs.frozen});
  if (needs.frozen_shards > 0) arena.add(kFrozenShards, needs.compute, {needs.frozen_shards});
  if (needs.training) add_float8_weights(arena, shape, layout, needs);
  if (shape.expert_bias) arena.add(kExpertBias, DType::f32, {shape.layers, shape.experts});
  arena.count(from);
  if (needs.training) {
    from = begin(MemoryCategory::gradients);
    arena.add("grads", DType::f32, {layout.gradients_total()});
    if (layout.shards_gradients()) {
      arena.add("grad_shards", DType::f32, {layout.shard_total()});
    }
    // A tied embedding on one rank: the part that comes from the input side, for the tokens that
    // occur, so that it is added to the head's part in the same order as if it came from another
    // stage.
    const bool together =
        shape.tie_embeddings && !shape.lora &&
        std::any_of(needs.chunks.begin(), needs.chunks.end(),
                    [](const ChunkRange& chunk) { return chunk.embedding && chunk.head; });
    if (together) {
      const int64_t at_once = layout.shards_gradients() ? 1 : needs.micro_batches;
      const int64_t rows = std::min(vocab_shard(shape, needs.tp, 0).rows, needs.tokens() * at_once);
      arena.add("tied.grad", DType::f32, {rows, shape.hidden});
      arena.add("tied.ids", DType::i32, {rows});
    }
    arena.count(from);
    from = begin(MemoryCategory::optimizer);
    arena.on_host = needs.offload;
    if (const auto master = master_type(needs.compute)) {
      arena.add("master", *master, {layout.shard_total()});
    }
    arena.add("moments", DType::f32, {layout.shard_total()});
    if (moments_of(needs.optimizer) > 1) {
      const bool muon = needs.optimizer == OptimizerKind::muon;
      arena.add("second_moments", DType::f32,
                {muon ? needs.matrices.others : layout.shard_total()});
    }
    arena.on_host = false;
    if (shape.expert_bias) arena.add(kExpertCounts, DType::f64, {shape.layers, shape.experts});
    arena.count(from);
  }
  add_activations(arena, shape, needs);
  add_scratch(arena, shape, layout, needs, table_rows);
  return arena.take();
}

}  // namespace mtl
