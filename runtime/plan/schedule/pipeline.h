// Which layers each pipeline stage holds. A rank of stage s holds the chunks (virtual stages)
// s, s + stages, s + 2 * stages, ... of the model: the first virtual stage has the embedding, the
// last one the head.
#pragma once

#include <cstdint>
#include <vector>

namespace mtl {

struct ChunkRange {
  int64_t first_layer = 0;
  int64_t layers = 0;
  bool embedding = false;
  bool head = false;
  int64_t end_layer() const { return first_layer + layers; }
  bool operator==(const ChunkRange&) const = default;
};

// Layers of each virtual stage, in order, so that the most expensive virtual stage is as cheap as
// it can be when the head costs as much as `head` layers (its share of the FLOPs; the embedding is
// a lookup). What cannot be divided evenly goes to later stages, which keep fewer activations.
// Every virtual stage gets at least one layer if there are enough.
std::vector<int64_t> balanced_layers(int64_t layers, int virtual_stages, double head);
// The same where layers differ: `costs` of each, in the unit of `head`.
std::vector<int64_t> balanced_layers(const std::vector<double>& costs, int virtual_stages,
                                     double head);

// Chunks by [stage][chunk], from the layers of each of the stages * chunks virtual stages.
std::vector<std::vector<ChunkRange>> pipeline_layout(const std::vector<int64_t>& layers_of_virtual,
                                                     int stages, int chunks);

}  // namespace mtl
