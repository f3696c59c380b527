// Muon (K. Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024; scaled
// as in J. Liu et al., arXiv 2502.16982): what is subtracted from a matrix is its gradients' moving
// average, orthogonalized by Newton and Schulz's iteration. Each matrix is made whole on one of the
// ranks that hold parts of it (plan/matrices.h).
#pragma once

#include <span>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/engine/rank_groups.h"
#include "runtime/model/context.h"
#include "runtime/plan/matrices.h"
#include "runtime/plan/plan.h"
#include "runtime/spec/train_spec.h"

namespace mtl {

// A step of the iteration, x -> a x + b x x^T x + c x (x^T x)^2.
struct NewtonSchulz {
  float a = 0, b = 0, c = 0;
};

class Muon {
 public:
  Muon(const Plan& plan, const StagePlan& stage, const TrainSpec::Optimizer::Muon& settings,
       Device& device, const Arena& arena, const RankGroups& groups);

  // In place of the directions of all matrices (of the rank's parts, in the buffer of gradients)
  // comes what is to be subtracted from them, but for the learning rate.
  void orthogonalize_all(Tensor directions);

 private:
  // One parameter in a round, and what each rank of the group has of it.
  struct Job {
    size_t param = 0;
    std::vector<OwnedPart> parts = {};  // by shard
  };
  struct Round {
    bool experts = false;
    std::vector<Job> jobs = {};  // by the rank of the group that orthogonalizes it
  };

  void run(const Round& round, Tensor directions) const;
  void alone(const Job& job, Tensor directions) const;
  Tensor assemble(const Job& job, Tensor arrived) const;
  void take_apart(const Job& job, Tensor whole, Tensor arrived) const;
  Tensor orthogonalized_parameter(const ParamRow& row, Tensor whole) const;
  // The same for all pieces of a parameter, from rank to rank of the group.
  template <typename Visit>
  void each_piece(const Job& job, const Visit& visit) const;
  ColumnBlocks by_columns(const ParamRow& row, Tensor whole, Tensor columns) const;
  Communicator& group(const Round& round) const {
    return groups_[round.experts ? Link::expert_matrices : Link::matrices];
  }
  const ParamRow& row_of(const Job& job) const {
    return plan_.table[stage_.layout.params[job.param].row];
  }
  // In place of x [m, n], or in `next_`: nearly its nearest matrix with orthogonal rows or columns,
  // times `scale`.
  Tensor orthogonalized(Tensor x, float scale) const;
  void move(Tensor from, Tensor to) const;

  const Plan& plan_;
  const StagePlan& stage_;
  const TrainSpec::Optimizer::Muon& settings_;
  Device& device_;
  const RankGroups& groups_;
  const int tp_;
  const std::span<const NewtonSchulz> polynomials_;
  Tensor parts_, arrived_, whole_, columns_, segment_, next_, gram_, gram_squared_;
  std::vector<Round> rounds_;
};

}  // namespace mtl
