// Where each parameter of a pipeline stage lies in the rank's flat buffers, and how these are cut:
// into buckets that are reduced together, and each bucket into equal shards, of which a rank keeps
// one: of the optimizer state (ZeRO-1; S. Rajbhandari et al., arXiv 1910.02054; layout as
// Megatron-LM's distributed optimizer, but that shards never cut a chunk of the gradient norm, so
// that the norm does not depend on them), of the gradients too (ZeRO-2), of the weights too
// (ZeRO-3; PyTorch's FSDP, arXiv 2304.11277).
//
// What is kept in shards is whole only while it is used: in a window, which a few buckets share one
// after the other. Buckets are whole layers then.
#pragma once

#include <cstdint>
#include <vector>

#include "common/dtype.h"
#include "runtime/plan/grid.h"
#include "runtime/plan/schedule/pipeline.h"
#include "runtime/plan/shard_table.h"

namespace mtl {

// Elements per partial sum of the gradient norm; the device's chunk (kNormChunk) is the
// same. Chunks are cells of the flat buffer: [0, 4096), [4096, 8192), ...
inline constexpr int64_t kSquaresChunk = 4096;

struct ParamPlacement {
  size_t row = 0;       // index into the shard table; of the first rank along ep
  size_t row_step = 0;  // an expert's: from there to the next rank's, in the same place
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
  int64_t numel = 0;     // a multiple of kSquaresChunk * shards
  bool experts = false;  // of nothing else, which fewer ranks hold (Grid::kExpertData)
  int shards = 1;        // with ZeRO as many as ranks that hold it, or one copy of it
  int64_t kept = 0;      // where a rank's shard lies among those of all buckets
  int layer = -1;        // the lowest of its layers
  int chunk = 0;
  bool tied = false;  // holds an embedding whose gradient has a part on another stage
  size_t first_param = 0, end_param = 0;
  size_t window = 0;  // where it is whole, if its gradients or weights are kept in shards
};

// Memory for one whole bucket at a time, in buffers of all windows.
struct Window {
  int64_t offset = 0;
  int64_t numel = 0;
};

struct ParamLayout {
  // By chunk, then in table order, which is that of forward, but for experts that EP divides: they
  // stand behind all else of their part of the chunk, in buckets of their own.
  std::vector<ParamPlacement> params;
  std::vector<Bucket> buckets;  // ascending: backward completes them from the last
  int zero = 0;  // what is kept in shards: 1 optimizer state, 2 gradients too, 3 weights too
  bool sharded = false;         // that is, zero > 0, and over several ranks
  DType wire = DType::f32;      // of gradients on their way to the rank that has their shard
  int64_t total = 0;            // elements of all buckets
  std::vector<Window> windows;  // with ZeRO-2 and 3
  bool shards_gradients() const { return zero >= 2; }
  bool shards_weights() const { return zero >= 3; }
  int64_t shard_total() const {
    return buckets.empty() ? 0 : buckets.back().kept + buckets.back().numel / buckets.back().shards;
  }
  int64_t window_total() const {
    return windows.empty() ? 0 : windows.back().offset + windows.back().numel;
  }
  // Elements of the buffers that blocks read weights from and write gradients to.
  int64_t weights_total() const { return shards_weights() ? window_total() : total; }
  int64_t gradients_total() const { return shards_gradients() ? window_total() : total; }
  // As it is on the rank of that position along ep, which has other experts than the first.
  void move_to(int ep_rank) {
    for (ParamPlacement& param : params) param.row += static_cast<size_t>(ep_rank) * param.row_step;
  }
  // Where a parameter lies in them.
  int64_t weight_offset(const ParamPlacement& param) const {
    return shards_weights() ? in_window(param) : param.offset;
  }
  int64_t gradient_offset(const ParamPlacement& param) const {
    return shards_gradients() ? in_window(param) : param.offset;
  }

 private:
  int64_t in_window(const ParamPlacement& param) const {
    const Bucket& bucket = buckets[param.bucket];
    return windows[bucket.window].offset + param.offset - bucket.offset;
  }
};

// The part of a parameter that a shard owns: elements [first, first + count) of the local tensor.
struct OwnedPart {
  int64_t first = 0;
  int64_t count = 0;
  int64_t offset = 0;    // as ParamPlacement::offset
  int64_t weight = 0;    // in the buffer that keeps the weights: of all, or of the rank's shards
  int64_t gradient = 0;  // in the one that keeps the gradients
  int64_t state = 0;     // in those of the optimizer state
};
OwnedPart owned_part(const ParamLayout& layout, const ParamPlacement& param,
                     const Holders& holders);
OwnedPart part_of_shard(const ParamLayout& layout, const ParamPlacement& param, int shard);
// Of a bucket's shards the one that is the rank's.
int shard_of(const Bucket& bucket, const Holders& holders);

// Chunks of the gradient norm that [offset, offset + numel) touches: its sums of squares.
int64_t squares_count(int64_t offset, int64_t numel);

// Which rows of the table a layout has: beside adapters those that are trained have one and those
// that are not another, of weights alone.
enum class RowsOf { all, trained, frozen };

// `zero`: the stage of ZeRO, of which nothing is left where one rank holds everything.
// `bucket_numel`: elements at which a bucket is full; a tensor is never cut, nor, with ZeRO-2 and
// 3, a layer. `ends_apart`: the ends of the model share no bucket with layers, as with ZeRO-2
// and 3.
ParamLayout param_layout(const std::vector<ParamRow>& table, const GridSizes& sizes,
                         const std::vector<ChunkRange>& chunks, int64_t layers, int zero,
                         int64_t bucket_numel, bool tied_over_stages, bool ends_apart = false,
                         RowsOf rows = RowsOf::all);

}  // namespace mtl
