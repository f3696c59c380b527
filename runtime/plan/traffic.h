// What a rank puts into each of its groups in one step, exactly: the engine's communicators count
// the same (but for what tokens decide: rows to experts, planned as if each got as many). Formulas:
// Megatron-LM, arXiv 1909.08053 (TP), 2104.04473 (PP), 2205.05198 (SP).
#pragma once

#include <array>
#include <cstdint>

#include "runtime/plan/matrices.h"
#include "runtime/plan/memory/memory.h"

namespace mtl {

// A group of ranks and what it is for.
enum class Link {
  tensor,       // TP: activations, and gradients of what TP ranks hold in common
  kv,           // TP ranks that hold copies of one KV head: its gradients
  context,      // CP: tokens for heads
  experts,      // EP: rows of tokens to the experts that they have chosen, and back
  data,         // DP x EP x CP, of one copy of ZeRO's shards: gradients, and weights with ZeRO
  expert_data,  // DP x CP, with EP: those of experts
  copies,       // the same shard of the other copies: gradients that are summed in a copy
  expert_copies,
  activations,  // to the next virtual stage
  gradients,    // to the one before
  tied,         // first and last stage: the gradient of a tied embedding
  loss,         // DP x EP x CP x PP: the sum of the losses, and the experts' tokens
  norm,         // TP x EP x PP: sums of squares
  matrices,     // TP x the shards of a copy: Muon's, to the rank that orthogonalizes each, and back
  expert_matrices,  // with EP: those of experts
};
inline constexpr int kLinks = 15;
const char* link_name(Link link);
// Ranks in the group behind a link.
int link_ranks(Link link, const ModelShape& shape, const GridSizes& sizes);

// Payload bytes: of the whole tensor for collectives (the n of the ring formulas), of the own
// messages to others for send and all_to_all.
struct LinkBytes {
  int64_t all_reduce = 0, reduce_scatter = 0, all_gather = 0, send = 0, all_to_all = 0;
  bool operator==(const LinkBytes&) const = default;
  // What a ring of `ranks` sends per rank: 2n(k-1)/k for an all-reduce, n(k-1)/k for the others.
  int64_t on_the_wire(int ranks) const;
};

struct StageTraffic {
  std::array<LinkBytes, kLinks> links = {};
  LinkBytes& operator[](Link link) { return links[static_cast<size_t>(link)]; }
  const LinkBytes& operator[](Link link) const { return links[static_cast<size_t>(link)]; }
  void set_matrices(const MatrixTraffic& elements, DType compute);
};

// Of a rank of the stage that `needs` describes, in a step of `micro_batches`. On the links of
// matrices ranks differ (Plan::stage_of): the mean of them. `frozen`: as StagePlan's.
StageTraffic stage_traffic(const ModelShape& shape, const std::vector<ParamRow>& table,
                           const ParamLayout& layout, const ParamLayout& frozen,
                           const MemoryNeeds& needs, const GridSizes& sizes, int64_t micro_batches);

}  // namespace mtl
