// Brings the gradients of a rank together with those of the others: what TP ranks hold in common,
// tied embeddings of the first and last stage, and those of replicas (dp x ep x cp) in buckets,
// while backward still runs. With ZeRO-1 each of these ends up with its shard of the sums.
//
// With ZeRO-2 and 3 the rank keeps nothing but that: a micro-batch's gradients of a bucket lie in a
// window of memory, are reduced as soon as they are complete, and added to the rank's shard.
#pragma once

#include <vector>

#include "runtime/device/device.h"
#include "runtime/engine/data_queues.h"
#include "runtime/model/context.h"
#include "runtime/plan/plan.h"

namespace mtl {

class GradientReducer {
 public:
  // `tensor` serves the TP group; all references outlive this.
  GradientReducer(const Plan& plan, const StagePlan& stage, Device& device, const Arena& arena,
                  const RankGroups& groups, CommQueue& tensor, DataQueues& data, bool overlap);

  // A micro-batch begins: the first of a step, whose gradients are written, or a later one, whose
  // are added.
  void begin(bool first) { first_ = first; }
  // Before a pass writes the first gradient of a layer: waits until its window is free.
  void claim(int64_t layer);
  // Backward has written the gradients of a layer; without windows: that of the step's last
  // micro-batch.
  void layer_done(int chunk, int64_t layer);
  // After all backwards: reduces what has not been started, waits for everything.
  void finish();

 private:
  // What a window holds: gradients that are being written, or on their way.
  struct Held {
    bool busy = false, travels = false;
    size_t bucket = 0;
    CommQueue::Ticket ticket = 0;
    Tensor sum = {};  // in the window, to be added to the rank's shard; empty: it is there already
  };
  void start(size_t bucket);
  void start_in_window(size_t bucket);
  // Waits until a window's gradients are where they are kept.
  void settle(Held& held);
  Tensor shard(const Bucket& bucket) const;
  void sum_over_tp(const Bucket& bucket);

  const Plan& plan_;
  const StagePlan& stage_;
  Device& device_;
  const RankGroups& groups_;
  CommQueue& tensor_;
  DataQueues& data_;
  const Tensor grads_, shards_;
  const bool overlap_;
  std::vector<bool> started_;
  bool first_ = true;
  std::vector<size_t> buckets_;  // with windows: by layer, from -1
  std::vector<Held> windows_;
};

}  // namespace mtl
