// Buffers of a rank's memory plan share memory only where they live at different times.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/plan/memory_cases.h"

using namespace mtl;
using namespace mtl::test;

namespace memory_overlap_test {

namespace {

// -1 for a buffer that belongs to no layer.
int64_t layer_of(const BufferPlan& buffer) {
  return buffer.name.starts_with("layer") ? std::stoll(buffer.name.substr(5)) : -1;
}

// The phase of a step that a scratch buffer lives in; "" = all of it.
std::string phase_of(const BufferPlan& buffer) {
  if (buffer.name == "logits" || buffer.name == "head.dnormed") return "head";
  if (buffer.name == kAttentionRoom) return "attention's own backward";
  if (buffer.name.starts_with("attn.")) return "attention";
  if (buffer.name.starts_with("mlp.dense_")) return "mlp of a dense layer";
  if (buffer.name.starts_with("mlp.")) return "mlp";
  return buffer.name == "squares" ? "update" : "";
}

// Which of a stage's chunks a buffer in the slots belongs to.
size_t chunk_of(const BufferPlan& buffer, const std::vector<ChunkRange>& chunks) {
  const int64_t layer = layer_of(buffer);
  for (size_t c = 0; c < chunks.size(); ++c) {
    if (layer >= 0 ? layer >= chunks[c].first_layer && layer < chunks[c].end_layer()
        : (buffer.name.starts_with("head") || buffer.name == "targets") ? chunks[c].head
                                                                        : chunks[c].embedding) {
      return c;
    }
  }
  throw std::logic_error("buffer of no chunk: " + buffer.name);
}

// Which of the groups that are made again together a layer belongs to; layers that keep what is
// not on the list are groups of their own.
int64_t group_of(int64_t layer, const MemoryNeeds& needs) {
  for (const ChunkRange& chunk : needs.chunks) {
    for (const LayerGroup& group : layer_groups(needs.recompute, chunk)) {
      if (layer >= group.first_layer && layer < group.end_layer()) return group.first_layer;
    }
  }
  return -1;
}

bool may_overlap(const BufferPlan& a, const BufferPlan& b, const MemoryNeeds& needs,
                 bool parallel) {
  if (a.category != b.category || a.in_slot != b.in_slot || a.later != b.later) return false;
  // Made before the other block's backward, and read behind it.
  const auto waits = [](const BufferPlan& x, const BufferPlan& y) {
    return x.name == "attn.dcontext" && phase_of(y) == "mlp";
  };
  if (parallel && (waits(a, b) || waits(b, a))) return false;
  // What attention's own backward reads and writes, and all else of its block but what comes
  // behind.
  const auto is_there = [](const BufferPlan& x, const BufferPlan& y) {
    return x.name == kAttentionRoom && phase_of(y) == "attention" && y.name != "attn.dnormed";
  };
  if (is_there(a, b) || is_there(b, a)) return false;
  if (a.category == MemoryCategory::scratch) {
    return !phase_of(a).empty() && !phase_of(b).empty() && phase_of(a) != phase_of(b);
  }
  if (a.category != MemoryCategory::activations) return false;
  // A slot holds a micro-batch of one of the chunks.
  if (a.in_slot || a.later) return chunk_of(a, needs.chunks) != chunk_of(b, needs.chunks);
  return group_of(layer_of(a), needs) != group_of(layer_of(b), needs);
}

Recompute selective() {
  return {.core_attention = true, .mlp_activation = true, .norms = true};
}

}  // namespace

TEST_CASE("buffers overlap only where they live at different times") {
  struct Case {
    std::string name;
    MemoryNeeds needs;
  };
  const std::vector<ChunkRange> whole = {{.layers = 12, .embedding = true, .head = true}};
  const std::vector<ChunkRange> first_of_2 = {{.layers = 3, .embedding = true},
                                              {.first_layer = 6, .layers = 3}};
  const std::vector<ChunkRange> last_of_2 = {{.first_layer = 3, .layers = 3},
                                             {.first_layer = 9, .layers = 3, .head = true}};
  const Case cases[] = {
      {"plain", {.chunks = whole, .tp = 2, .compute = DType::bf16}},
      {"slots", {.chunks = first_of_2, .slots = 5, .compute = DType::bf16}},
      {"slots of the last stage", {.chunks = last_of_2, .slots = 3}},
      {"left for later", {.chunks = whole, .slots = 4, .later = 3, .tp = 2}},
      {"left for later by some layers",
       {.chunks = whole, .slots = 4, .later = 2, .recompute = {.norms = 7, .mlp = 3}}},
      {"selective", {.chunks = last_of_2, .slots = 3, .recompute = selective()}},
      {"selective in some layers",
       {.chunks = last_of_2,
        .slots = 3,
        .recompute = {.core_attention = 2, .mlp_activation = 1, .norms = true}}},
      {"context parallel", {.chunks = whole, .tp = 2, .cp = 2, .compute = DType::bf16}},
      {"sequence parallel", {.chunks = whole, .tp = 2, .sequence_parallel = true}},
      {"full", {.chunks = first_of_2, .slots = 4, .recompute = full(2)}},
      {"distributed", {.chunks = whole, .slots = 2, .tp = 2, .recompute = full(5, true)}},
      {"block",
       {.chunks = last_of_2,
        .slots = 2,
        .recompute = {.full = Recompute::Full::block, .layers = 1}}},
      {"sgd", {.chunks = whole, .optimizer = OptimizerKind::sgd}},
      {"generation", {.chunks = whole, .training = false, .context = 300}},
  };
  const ModelShape shapes[] = {shape_124m(), shape_moe(),     shape_mixture(),
                               shape_neox(), shape_command(), shape_olmo()};
  for (size_t i = 0; i < std::size(shapes) * std::size(cases); ++i) {
    const Case& c = cases[i / std::size(shapes)];
    CAPTURE(c.name);
    const ModelShape& shape = shapes[i % std::size(shapes)];
    MemoryNeeds needs = c.needs;
    needs.micro_batch = 2;
    needs.seq = 128;
    CAPTURE(shape.experts);
    const MemoryPlan plan = plan_of(shape, needs);
    CHECK(plan.slots == needs.slots);
    int64_t category_bytes = 0;
    for (int64_t bytes : plan.category_bytes) category_bytes += bytes;
    CHECK(category_bytes == plan.total_bytes);
    Range slots{plan.total_bytes, 0};  // all that the slots take
    for (const BufferPlan& buffer : plan.buffers) {
      if (!buffer.in_slot) continue;
      slots.begin = std::min(slots.begin, buffer.offset);
    }
    slots.end = slots.begin + plan.slots * plan.slot_bytes;
    CHECK(plan.later_slots == needs.later);
    Range later{slots.end, slots.end + plan.later_slots * plan.later_bytes};
    for (const BufferPlan& a : plan.buffers) {
      CAPTURE(a.name);
      CHECK(a.offset % 256 == 0);
      CHECK(range_of(a).end <= plan.total_bytes);
      if (a.in_slot) {
        CHECK(range_of(a).end <= slots.begin + plan.slot_bytes);
      } else {
        CHECK_FALSE((range_of(a) && slots));
      }
      if (a.later) {
        CHECK(range_of(a).begin >= later.begin);
        CHECK(range_of(a).end <= later.begin + plan.later_bytes);
      } else {
        CHECK_FALSE((range_of(a) && later));
      }
      for (const BufferPlan& b : plan.buffers) {
        if (&a == &b || !(range_of(a) && range_of(b))) continue;
        CAPTURE(b.name);
        CHECK(may_overlap(a, b, needs, shape.parallel_residual));
      }
    }
  }
}

}  // namespace memory_overlap_test
