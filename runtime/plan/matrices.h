// Who does Muon's work, and what that takes. A matrix is orthogonalized whole, by one of the ranks
// that hold parts of it, so that neither TP nor ZeRO changes the result: these send their parts of
// its direction to that rank and get back their parts of what it made of it. In a round each rank
// has one matrix at most; matrices are taken from the largest on, so that those of a round are
// alike.
//
// Ranks that hold the same (replicas without ZeRO, copies of ZeRO's shards) each do it for
// themselves. Experts that EP divides are shared by the ranks that have the same ones. Embeddings
// and the head, which have AdamW's two moments, are in buckets of their own, so that shards need
// the same.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/memory/memory.h"
#include "runtime/plan/param_layout.h"

namespace mtl {

// The type that matrices travel and are orthogonalized in: bf16 where the model computes in it
// (five steps of Newton and Schulz leave singular values between 0.7 and 1.2 anyway), else fp32.
constexpr DType matrix_type(DType compute) {
  return compute == DType::bf16 ? DType::bf16 : DType::f32;
}

// The ranks that divide matrices among them: rank tp + TP * shard of the group has that shard of
// what a TP rank has.
struct MatrixGroup {
  int tp = 1, shards = 1;
  int ranks() const { return tp * shards; }
};
MatrixGroup matrix_group(const ParamLayout& layout, const GridSizes& sizes, bool experts);
// They themselves, ascending.
std::vector<int> matrix_ranks(const Grid& grid, bool sharded, int rank, bool experts);

// Rank q of the group takes params[q] of the layout, if there is one.
struct MatrixRound {
  bool experts = false;  // that EP divides
  std::vector<size_t> params;
};
std::vector<MatrixRound> matrix_rounds(const ParamLayout& layout,
                                       const std::vector<ParamRow>& table, const GridSizes& sizes);

// Of the ranks of the stage that need most.
MatrixNeeds matrix_needs(const ParamLayout& layout, const std::vector<ParamRow>& table,
                         const GridSizes& sizes);
// Elements that a rank of a group sends to others in a step, forth and back: the mean of its ranks,
// and those of one.
struct MatrixTraffic {
  int64_t dense = 0, experts = 0;
};
MatrixTraffic matrix_traffic(const ParamLayout& layout, const std::vector<ParamRow>& table,
                             const GridSizes& sizes);
MatrixTraffic matrix_traffic_of(const ParamLayout& layout, const std::vector<ParamRow>& table,
                                const GridSizes& sizes, const Coord& coord);

// How many moments the optimizer keeps of a parameter.
int moments_of(OptimizerKind optimizer, const ParamRow& row);
// Where the second moments of each parameter begin on a rank: with Muon matrices have none.
std::vector<int64_t> second_moments(const ParamLayout& layout, const std::vector<ParamRow>& table,
                                    const Holders& holders, OptimizerKind optimizer);

}  // namespace mtl
