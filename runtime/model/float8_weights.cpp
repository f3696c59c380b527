#include "runtime/model/float8_weights.h"

#include "runtime/plan/float8.h"

namespace mtl {

Float8Weight::Float8Weight(const BlockContext& context, int64_t layer, const std::string& place) {
  const std::string name = layer_buffer(layer, place.c_str());
  forward = context.arena.find_tensor(name + kFloat8Forward);
  if (!forward) return;
  backward = context.arena.tensor(name + kFloat8Backward);
  inverse = context.arena.tensor(name + kFloat8Inverse);
}

Float8Weights::Float8Weights(const BlockContext& context, const std::vector<ChunkRange>& chunks)
    : context_(context) {
  const LayerShapes shapes(context.shape);
  for (const ChunkRange& chunk : chunks) {
    for (int64_t number = chunk.first_layer; number < chunk.end_layer(); ++number) {
      const Tensor amax = context.arena.find_tensor(layer_buffer(number, kFloat8Amax));
      if (!amax) continue;
      Layer layer;
      layer.amax = amax;
      const int tp = context.tp.size(), ep = context.ep.size();
      for (const LocalLinear& linear : layer_linears(shapes.of(number), tp, ep)) {
        const Float8Weight copies(context, number, linear.slot);
        if (!copies) continue;
        const std::string slot = linear.expert < 0
                                     ? linear.slot
                                     : expert_slot(context.ep.expert(linear.expert), linear.part);
        const Parameter parameter = context.parameters.find(number, slot + ".weight");
        layer.linears.push_back({copies, parameter.weight, parameter.out_in});
      }
      layers_.emplace(number, std::move(layer));
    }
  }
}

void Float8Weights::changed() {
  made_.clear();
}

void Float8Weights::prepare(int64_t number) {
  const auto found = layers_.find(number);
  if (found == layers_.end()) return;
  const auto [made, anew] = made_.try_emplace(found->second.amax.data, number);
  if (!anew && made->second == number) return;
  made->second = number;
  make(found->second);
}

void Float8Weights::prepare_all() {
  for (const auto& [number, layer] : layers_) prepare(number);
}

void Float8Weights::make(const Layer& layer) const {
  Device& device = context_.device;
  const auto amax = [&](size_t i) { return layer.amax.slice(static_cast<int64_t>(i), 1); };
  for (size_t i = 0; i < layer.linears.size(); ++i) {
    device.amax(layer.linears[i].weight, amax(i));
  }
  if (context_.tp.size() > 1) context_.tp.all_reduce(layer.amax, Reduce::max);
  for (size_t i = 0; i < layer.linears.size(); ++i) {
    const Linear& linear = layer.linears[i];
    device.quantize({.x = linear.weight,
                     .amax = amax(i),
                     .y = linear.out_in ? linear.copies.forward : linear.copies.backward,
                     .transposed = linear.out_in ? linear.copies.backward : linear.copies.forward,
                     .inverse = linear.copies.inverse});
  }
}

}  // namespace mtl
