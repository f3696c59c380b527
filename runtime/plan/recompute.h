// Which activations backward makes again instead of keeping them (T. Chen et al., arXiv 1604.06174;
// selective: V. Korthikanti et al., arXiv 2205.05198).
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "runtime/plan/schedule/pipeline.h"
#include "runtime/spec/train_spec.h"

namespace mtl {

// So many layers of each chunk: its first ones, which backward comes to last, beside the gradients
// of all others that are on their way. Of each chunk rather than of each rank, since the memory of
// a micro-batch under way is as large as that of the rank's largest chunk.
class FirstLayers {
 public:
  // All of them, or none.
  template <std::same_as<bool> All>
  constexpr FirstLayers(All all) : count_(all ? kAll : 0) {}
  template <std::integral Count>
  requires(!std::same_as<Count, bool>) constexpr FirstLayers(Count count)
      : count_(static_cast<int64_t>(count)) {}

  constexpr explicit operator bool() const { return count_ > 0; }
  bool all() const { return count_ == kAll; }
  int64_t count() const { return count_; }
  int64_t of(const ChunkRange& chunk) const { return std::min(count_, chunk.layers); }
  bool operator==(const FirstLayers&) const = default;

 private:
  static constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  int64_t count_;
};

// What a layer makes again from what it keeps.
struct PartsAgain {
  bool core_attention = false;  // the context and its log-sum-exp, from Q, K and V
  bool mlp_activation = false;  // the output of the activation, from its input
  bool norms = false;           // the normalised rows, from the block's input
  bool latents = false;         // Q, K and V of latent attention, from its latents
  bool mlp = false;             // all of the MLP, from its input
  // Whether backward may leave gradients of weights for later (ZB-H1): what their products read is
  // kept, or costs no product to make again then.
  bool leaves_weights() const { return !core_attention && !mlp; }
  bool operator==(const PartsAgain&) const = default;
};

struct Recompute {
  // Selective: the layers that make each of these parts again.
  FirstLayers core_attention = false, mlp_activation = false, norms = false, latents = false,
              mlp = false;
  // Full: groups of layers keep only the input of their first layer.
  enum class Full { none, uniform, block } full = Full::none;
  int64_t layers = 1;       // uniform: layers per group; block: groups of one layer per chunk
  bool distribute = false;  // the kept inputs are divided over TP
};

Recompute recompute_of(const TrainSpec& spec);
// What recompute.modules says of it: "[norm, mlp_act: 7]"; "[]" where it makes no parts again.
std::string modules_of(const Recompute& recompute);
// Of the layer at `place` in its chunk.
PartsAgain parts_again(const Recompute& recompute, int64_t place);
// All that differ, those of the first layer first.
std::vector<PartsAgain> different_parts(const Recompute& recompute);

// A run of layers that are forwarded again together; `again` = false for layers that keep
// everything (each a group of its own).
struct LayerGroup {
  int64_t first_layer = 0;
  int64_t layers = 1;
  bool again = false;
  PartsAgain parts = {};
  int64_t end_layer() const { return first_layer + layers; }
  bool leaves_weights() const { return !again && parts.leaves_weights(); }
};
std::vector<LayerGroup> layer_groups(const Recompute& recompute, const ChunkRange& chunk);
// Layers of a chunk that backward makes again, if it makes any: of block the first ones, else all.
int64_t layers_again(const Recompute& recompute, const ChunkRange& chunk);

}  // namespace mtl
