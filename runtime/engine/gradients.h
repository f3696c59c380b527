// Brings the gradients of a rank together with those of the others: what TP ranks hold in common,
// tied embeddings of the first and last stage, and data parallelism in buckets, while backward
// still runs. With ZeRO-1 each DP rank ends up with its shard of the sums.
#pragma once

#include <vector>

#include "runtime/comm/queue.h"
#include "runtime/device/tensor.h"
#include "runtime/engine/rank_groups.h"
#include "runtime/plan/plan.h"

namespace mtl {

class GradientReducer {
 public:
  // `data` serves the DP group and `tensor` the TP group; all references outlive this.
  GradientReducer(const Plan& plan, const StagePlan& stage, const RankGroups& groups,
                  CommQueue& tensor, CommQueue& data, Tensor grads, bool overlap);

  // Backward of the step's last micro-batch has written the gradients of a layer.
  void layer_done(int chunk, int64_t layer);
  // After all backwards: reduces what has not been started, waits for everything.
  void finish();

 private:
  void start(size_t bucket);
  void sum_over_tp(const Bucket& bucket);

  const Plan& plan_;
  const StagePlan& stage_;
  const RankGroups& groups_;
  CommQueue& tensor_;
  CommQueue& data_;
  const Tensor grads_;
  const bool overlap_;
  std::vector<bool> started_;
};

}  // namespace mtl
