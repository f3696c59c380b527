// What a rank's memory plan is built of, for memory_plan alone: the builder that lays buffers out,
// the sizes that their shapes are made of, and what adds the buffers of a category.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/memory/memory.h"
#include "runtime/plan/shard_table.h"

namespace mtl {

// Lays buffers one behind the other. Where alternatives share memory, each begins at the same mark,
// and the region ends where the longest of them does.
class ArenaBuilder {
 public:
  // Of the buffers that are added next.
  MemoryCategory category = MemoryCategory::weights;
  bool in_slot = false;
  bool later = false;
  bool on_host = false;

  void add(std::string name, DType dtype, std::vector<int64_t> shape) {
    BufferPlan buffer;
    buffer.name = std::move(name);
    buffer.category = category;
    buffer.dtype = dtype;
    buffer.bytes = bytes_of(dtype);
    for (int64_t d : shape) buffer.bytes *= d;
    buffer.shape = std::move(shape);
    buffer.in_slot = in_slot;
    buffer.later = later;
    buffer.on_host = on_host;
    int64_t& at = on_host ? plan_.host_bytes : at_;
    buffer.offset = at;
    at += (buffer.bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
    end_ = std::max(end_, at_);
    plan_.index.emplace(buffer.name, plan_.buffers.size());
    plan_.buffers.push_back(std::move(buffer));
  }
  int64_t at() const { return at_; }
  void go_to(int64_t offset) { at_ = offset; }
  void go_to_end() { at_ = end_; }
  // Everything since `from` belongs to the category.
  void count(int64_t from) { plan_.category_bytes[static_cast<size_t>(category)] += end_ - from; }
  // What lies since `from` is slot 0 of `slots`; of what is left for later.
  void repeat(int64_t from, int64_t slots) {
    plan_.slots = slots;
    plan_.slot_bytes = repeated(from, slots);
  }
  void repeat_later(int64_t from, int64_t slots) {
    plan_.later_slots = slots;
    plan_.later_bytes = repeated(from, slots);
  }
  MemoryPlan take() {
    plan_.total_bytes = end_;
    return std::move(plan_);
  }

 private:
  static constexpr int64_t kAlignBytes = 256;

  int64_t repeated(int64_t from, int64_t slots) {
    const int64_t bytes = end_ - from;
    end_ += (slots - 1) * bytes;
    at_ = end_;
    return bytes;
  }

  MemoryPlan plan_;
  int64_t at_ = 0;
  int64_t end_ = 0;
};

// The sizes that shapes are made of, on one rank.
struct RankDims {
  RankDims(const ModelShape& shape, const MemoryNeeds& needs)
      : n(needs.tokens()),
        stream(needs.sequence_parallel ? n / needs.tp : n),
        h(shape.hidden),
        heads(shape.heads / needs.tp),
        kv_heads(local_kv_heads(shape, needs.tp)),
        head_dim(shape.head_dim),
        value_dim(shape.value_dim()),
        context(heads * value_dim),
        qkv((heads + kv_heads) * head_dim + kv_heads * value_dim),
        queries(heads * head_dim),
        pairs(heads * shape.latent_pair()),
        ffn(shape.ffn / needs.tp),
        dense_ffn(shape.dense_layer_ffn / needs.tp),
        shared(shape.experts > 0 ? shape.shared_ffn / needs.tp : 0),
        cp(needs.cp),
        all(n * cp),
        own_heads(heads / cp),
        own_kv_heads(local_kv_heads(shape, needs.tp * needs.cp)),
        seen(needs.training ? all : needs.context),
        rows(n * shape.active_experts()),
        expert_rows(needs.rows_of_experts(shape)),
        ep(needs.ep),
        vocab(vocab_shard(shape, needs.tp, 0).rows) {}
  int64_t n, stream;  // tokens, and those of the residual stream
  int64_t h, heads, kv_heads, head_dim, value_dim, context, qkv;
  int64_t queries, pairs;  // of latent attention, before they are qkv
  int64_t ffn;
  int64_t dense_ffn;  // of dense layers beside mixtures
  int64_t shared;     // of the block beside the experts
  int64_t cp;
  // A rank's attention: all tokens of a sequence, and of the heads the cp'th part.
  int64_t all, own_heads, own_kv_heads;
  int64_t seen;  // in generation those of earlier passes too, of which all else is gone
  int64_t own_context() const { return own_heads * value_dim; }
  int64_t own_qkv() const {
    return (own_heads + own_kv_heads) * head_dim + own_kv_heads * value_dim;
  }
  // Of feed-forward blocks: a token has one for each of its experts. Those that the rank's tokens
  // have, and those for which its experts have memory.
  int64_t rows, expert_rows;
  int64_t ep;
  int64_t vocab;
};

// What one micro-batch on its way through one of the chunks needs, in the slot; what recompute
// makes again, in one region for all slots and layers.
void add_activations(ArenaBuilder& arena, const ModelShape& shape, const MemoryNeeds& needs);

// What lives only during one phase of a step; `table_rows` are those of the shard table.
void add_scratch(ArenaBuilder& arena, const ModelShape& shape, const ParamLayout& layout,
                 const MemoryNeeds& needs, size_t table_rows);

}  // namespace mtl
