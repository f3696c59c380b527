#include "runtime/plan/param_layout.h"

#include <algorithm>

namespace mtl {

namespace {

constexpr int64_t kAlignElements = 64;  // 256 bytes of f32: a cache line for every engine

// Rows that lie together in memory.
struct Block {
  int chunk = 0;
  size_t first_row = 0, end_row = 0;
  int layer = -1;
  int64_t numel = 0;
  bool tied = false, tied_copy = false;
  bool experts = false;
};

int64_t numel_of(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

std::vector<Block> blocks_of(const std::vector<ParamRow>& table, const GridSizes& sizes,
                             const std::vector<ChunkRange>& chunks, int64_t layers,
                             bool tied_over_stages, RowsOf rows) {
  std::vector<Block> blocks;
  const auto wanted = [&](size_t row) {
    return rows == RowsOf::all || table[row].frozen == (rows == RowsOf::frozen);
  };
  auto add = [&](int chunk, size_t row) {
    Block block{.chunk = chunk, .first_row = row, .end_row = row, .layer = table[row].layer};
    block.experts = table[row].expert >= 0 && sizes[Axis::ep] > 1;
    while (block.end_row < table.size() && table[block.end_row].layer == table[row].layer &&
           table[block.end_row].slot == table[row].slot) {
      block.numel += numel_of(local_shape(table[block.end_row], sizes));
      ++block.end_row;
    }
    blocks.push_back(block);
    return block.end_row;
  };
  for (size_t c = 0; c < chunks.size(); ++c) {
    const ChunkRange& range = chunks[c];
    const auto chunk = static_cast<int>(c);
    for (size_t row = 0; row < table.size();) {
      const int layer = table[row].layer;
      const bool here = layer < 0         ? range.embedding
                        : layer == layers ? range.head
                                          : layer >= range.first_layer && layer < range.end_layer();
      const bool elsewhere = table[row].expert >= 0 && table[row].expert % sizes[Axis::ep] != 0;
      if (!here || elsewhere || table[row].balances || !wanted(row)) {
        ++row;
        continue;
      }
      row = add(chunk, row);
      if (table[blocks.back().first_row].slot == "tokens") blocks.back().tied = tied_over_stages;
    }
    // The token embedding is the first row.
    if (range.head && !range.embedding && tied_over_stages && wanted(0)) {
      add(chunk, 0);
      blocks.back().layer = static_cast<int>(layers);
      blocks.back().tied = blocks.back().tied_copy = true;
    }
  }
  return blocks;
}

// The blocks of each bucket, from the last one: [first, end) of `blocks`, ascending.
std::vector<std::pair<size_t, size_t>> cut_into_buckets(const std::vector<Block>& blocks,
                                                        int64_t bucket_numel, int64_t layers,
                                                        bool whole_layers, bool ends_apart) {
  // The ends of the model are much larger than a layer, or much smaller.
  const auto is_end = [&](const Block& block) { return block.layer < 0 || block.layer == layers; };
  std::vector<std::pair<size_t, size_t>> buckets;
  size_t end = blocks.size();
  int64_t numel = 0;
  for (size_t i = blocks.size(); i-- > 0;) {
    numel += blocks[i].numel;
    const bool full = numel >= bucket_numel;
    // An embedding that waits for another stage would hold up what shares its bucket; a chunk's
    // gradients are complete at another time than the next one's.
    const bool border =
        i == 0 || blocks[i].tied || blocks[i - 1].tied || blocks[i].chunk != blocks[i - 1].chunk;
    const bool between_layers = i > 0 && blocks[i].layer != blocks[i - 1].layer;
    const bool may_end = !whole_layers || between_layers;
    const bool end_of_model =
        ends_apart && between_layers && (is_end(blocks[i]) || is_end(blocks[i - 1]));
    if (!border && !end_of_model && !(full && may_end)) continue;
    buckets.emplace_back(i, end);
    end = i;
    numel = 0;
  }
  std::reverse(buckets.begin(), buckets.end());
  return buckets;
}

// The layers' buckets take turns with two windows, and those of divided experts with two more: one
// is used while the next one travels. An embedding and a head that do not share a table are not
// used together and share a window.
void assign_windows(ParamLayout& layout, int64_t layers, bool tied) {
  std::vector<int64_t> numel;
  const auto put = [&](Bucket& bucket, size_t window) {
    if (numel.size() <= window) numel.resize(window + 1);
    bucket.window = window;
    numel[window] = std::max(numel[window], bucket.numel);
  };
  size_t first = 0;
  for (const bool experts : {false, true}) {
    size_t turn = 0;
    for (Bucket& bucket : layout.buckets) {
      const bool of_layers = bucket.layer >= 0 && bucket.layer < layers;
      if (of_layers && bucket.experts == experts) put(bucket, first + turn++ % 2);
    }
    first = numel.size();
  }
  const size_t ends = numel.size();
  for (Bucket& bucket : layout.buckets) {
    if (bucket.layer < 0) put(bucket, ends);
    if (bucket.layer == layers) put(bucket, tied ? ends + 1 : ends);
  }
  for (const int64_t size : numel) {
    layout.windows.push_back({.offset = layout.window_total(), .numel = size});
  }
}

}  // namespace

int64_t squares_count(int64_t offset, int64_t numel) {
  if (numel == 0) return 0;
  return (offset + numel - 1) / kSquaresChunk - offset / kSquaresChunk + 1;
}

int shard_of(const Bucket& bucket, const Holders& holders) {
  return bucket.shards == 1 ? 0 : bucket.experts ? holders.expert_shard() : holders.shard();
}

OwnedPart owned_part(const ParamLayout& layout, const ParamPlacement& param,
                     const Holders& holders) {
  return part_of_shard(layout, param, shard_of(layout.buckets[param.bucket], holders));
}

OwnedPart part_of_shard(const ParamLayout& layout, const ParamPlacement& param, int shard) {
  const Bucket& bucket = layout.buckets[param.bucket];
  const int64_t length = bucket.numel / bucket.shards;
  const int64_t shard_begin = bucket.offset + length * shard;
  const int64_t begin = std::clamp(shard_begin, param.offset, param.offset + param.numel);
  const int64_t end = std::clamp(shard_begin + length, param.offset, param.offset + param.numel);
  const int64_t state = bucket.kept + (begin - shard_begin);
  return {.first = begin - param.offset,
          .count = end - begin,
          .offset = begin,
          .weight = layout.shards_weights() ? state : begin,
          .gradient = layout.shards_gradients() ? state : begin,
          .state = state};
}

namespace {

// Rows from one expert of a layer to the next.
size_t rows_of_expert(const std::vector<ParamRow>& table, size_t row) {
  size_t next = row;
  while (table[next].expert == table[row].expert) ++next;
  size_t first = row;
  while (table[first].expert == table[row].expert) --first;
  return next - first - 1;
}

// Puts the blocks that `chosen` into a bucket behind the others.
void add_bucket(ParamLayout& layout, const std::vector<ParamRow>& table, const GridSizes& sizes,
                const std::vector<const Block*>& chosen, Bucket bucket) {
  if (chosen.empty()) return;
  bucket.offset = layout.total;
  bucket.kept = layout.shard_total();
  bucket.first_param = layout.params.size();
  int64_t at = layout.total;
  for (const Block* block : chosen) {
    // Large tensors begin at a chunk of the norm and small ones lie inside one, so that the
    // chunks of a tensor are the same in every layout.
    const bool crosses =
        at / kSquaresChunk != (at + std::max<int64_t>(block->numel, 1) - 1) / kSquaresChunk;
    if (crosses) at = round_up(at, kSquaresChunk);
    for (size_t row = block->first_row; row < block->end_row; ++row) {
      ParamPlacement placement;
      placement.row = row;
      placement.row_step = block->experts ? rows_of_expert(table, row) : 0;
      placement.chunk = block->chunk;
      placement.shape = local_shape(table[row], sizes);
      placement.offset = at;
      placement.numel = numel_of(placement.shape);
      placement.bucket = layout.buckets.size();
      placement.tied_copy = block->tied_copy;
      at += placement.numel;
      layout.params.push_back(std::move(placement));
    }
    at = round_up(at, kAlignElements);
  }
  bucket.numel = round_up(at - bucket.offset, kSquaresChunk * bucket.shards);
  bucket.end_param = layout.params.size();
  layout.total = bucket.offset + bucket.numel;
  layout.buckets.push_back(bucket);
}

}  // namespace

ParamLayout param_layout(const std::vector<ParamRow>& table, const GridSizes& sizes,
                         const std::vector<ChunkRange>& chunks, int64_t layers, int zero,
                         int64_t bucket_numel, bool tied_over_stages, bool ends_apart,
                         RowsOf rows) {
  const std::vector<Block> blocks = blocks_of(table, sizes, chunks, layers, tied_over_stages, rows);
  ParamLayout layout;
  const Holders holders = Grid(sizes).holders({});
  layout.sharded = zero > 0 && holders.shards() > 1;
  layout.zero = layout.sharded ? zero : 0;
  for (const auto& [first, end] :
       cut_into_buckets(blocks, bucket_numel, layers, layout.shards_gradients(),
                        ends_apart || layout.shards_gradients())) {
    std::vector<const Block*> experts, others;
    for (size_t b = first; b < end; ++b) {
      (blocks[b].experts ? experts : others).push_back(&blocks[b]);
    }
    const Bucket bucket = {.shards = layout.sharded ? holders.shards() : 1,
                           .layer = blocks[first].layer,
                           .chunk = blocks[first].chunk,
                           .tied = blocks[first].tied};
    add_bucket(layout, table, sizes, others, bucket);
    Bucket of_experts = bucket;
    of_experts.experts = true;
    if (!experts.empty()) of_experts.layer = experts.front()->layer;
    of_experts.shards = layout.sharded ? holders.expert_shards() : 1;
    add_bucket(layout, table, sizes, experts, of_experts);
  }
  if (layout.shards_gradients()) {
    const bool head = std::any_of(table.begin(), table.end(),
                                  [](const ParamRow& row) { return row.slot == "head"; });
    assign_windows(layout, layers, !head);
  }
  return layout;
}

}  // namespace mtl
