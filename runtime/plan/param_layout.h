// Where each parameter of a pipeline stage lies in the rank's flat buffers, and how these are cut:
// into buckets that are reduced together, and each bucket into equal shards of optimizer state
// (ZeRO-1; J. Rasley et al., arXiv 1910.02054; layout as Megatron-LM's distributed optimizer, but
// that shards never cut a chunk of the gradient norm, so that the norm does not depend on them).
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/grid.h"
#include "runtime/plan/pipeline.h"
#include "runtime/plan/shard_table.h"

namespace mtl {

// Elements per partial sum of the gradient norm; the device's chunk (Device::kNormChunk) is the
// same. Chunks are cells of the flat buffer: [0, 4096), [4096, 8192), ...
inline constexpr int64_t kSquaresChunk = 4096;

struct ParamPlacement {
  size_t row = 0;  // index into the shard table
  int chunk = 0;
  std::vector<int64_t> shape;
  int64_t offset = 0;  // elements
  int64_t numel = 0;
  size_t bucket = 0;
  bool tied_copy = false;  // the last stage's copy of a tied embedding: its master is elsewhere
};

// Gradients that travel together. Complete when backward has passed `layer` of `chunk`.
struct Bucket {
  int64_t offset = 0;
  int64_t numel = 0;  // a multiple of kSquaresChunk * shards
  int layer = -1;     // the lowest of its layers
  int chunk = 0;
  bool tied = false;  // holds an embedding whose gradient has a part on another stage
  size_t first_param = 0, end_param = 0;
};

struct ParamLayout {
  std::vector<ParamPlacement> params;  // by chunk, then in table order: the order of forward
  std::vector<Bucket> buckets;         // ascending: backward completes them from the last
  int shards = 1;                      // of the optimizer state: dp with ZeRO-1
  int64_t total = 0;                   // elements of a flat buffer
  int64_t shard_total() const { return total / shards; }
};

// The part of a parameter that a shard owns: elements [first, first + count) of the local tensor.
struct OwnedPart {
  int64_t first = 0;
  int64_t count = 0;
  int64_t offset = 0;  // in the flat buffers of weights and gradients
  int64_t state = 0;   // in the flat buffers of the optimizer state
};
OwnedPart owned_part(const ParamLayout& layout, const ParamPlacement& param, int shard);

// Chunks of the gradient norm that [offset, offset + numel) touches: its sums of squares.
int64_t squares_count(int64_t offset, int64_t numel);

// `bucket_numel`: elements at which a bucket is full; a tensor is never cut.
ParamLayout param_layout(const std::vector<ParamRow>& table, const GridSizes& sizes,
                         const std::vector<ChunkRange>& chunks, int64_t layers, int shards,
                         int64_t bucket_numel, bool tied_over_stages);

}  // namespace mtl
