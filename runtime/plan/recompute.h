// Which activations backward makes again instead of keeping them (T. Chen et al., arXiv 1604.06174;
// selective: V. Korthikanti et al., arXiv 2205.05198).
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/pipeline.h"
#include "runtime/spec/train_spec.h"

namespace mtl {

struct Recompute {
  // Selective: what every layer makes again from what it keeps.
  bool core_attention = false;  // the context and its log-sum-exp, from Q, K and V
  bool mlp_activation = false;  // the output of the activation, from its input
  bool norms = false;           // the normalised rows, from the block's input
  bool mlp = false;             // all of the MLP, from its input
  // Full: groups of layers keep only the input of their first layer.
  enum class Full { none, uniform, block } full = Full::none;
  int64_t layers = 1;       // uniform: layers per group; block: groups of one layer per chunk
  bool distribute = false;  // the kept inputs are divided over TP
};

Recompute recompute_of(const TrainSpec& spec);

// A run of layers that are forwarded again together; `again` = false for layers that keep
// everything (each a group of its own).
struct LayerGroup {
  int64_t first_layer = 0;
  int64_t layers = 1;
  bool again = false;
  int64_t end_layer() const { return first_layer + layers; }
};
std::vector<LayerGroup> layer_groups(const Recompute& recompute, const ChunkRange& chunk);
// Layers of a chunk that backward makes again, if it makes any: of block the first ones, else all.
int64_t layers_again(const Recompute& recompute, const ChunkRange& chunk);

}  // namespace mtl
