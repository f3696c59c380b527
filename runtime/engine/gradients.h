// Brings the gradients of a rank together with those of the others: what TP ranks hold in common,
// tied embeddings of the first and last stage, and those of replicas (dp x ep x cp) in buckets,
// while backward still runs. With ZeRO-1 each of these ends up with its shard of the sums.
//
// With ZeRO-2 and 3 the rank keeps nothing but that: a micro-batch's gradients of a bucket lie in a
// window of memory, are reduced as soon as they are complete, and added to the rank's shard.
//
// Where there are several copies of the shards (parallel.zero_ranks), each sums the gradients of
// its own ranks, and what a shard has at the end of the step is summed over the copies.
//
// Gradients that travel in 16 bits (ParamLayout::wire) are rounded once, sent to the rank that has
// their shard, and added there in f32, in the order of the ranks. A reduce-scatter in 16 bits would
// round between any two additions, and move the same bytes.
#pragma once

#include <vector>

#include "runtime/device/device.h"
#include "runtime/engine/data_queues.h"
#include "runtime/model/context.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/weight_reads.h"

namespace mtl {

class GradientReducer {
 public:
  // `tensor` serves the TP group; all references outlive this.
  GradientReducer(const Plan& plan, const StagePlan& stage, Device& device, const Arena& arena,
                  const RankGroups& groups, CommQueue& tensor, DataQueues& data, bool overlap);

  // A micro-batch begins: the first of a step, whose gradients are written, or a later one, whose
  // are added; or the last, after which the sums are complete.
  void begin(bool first, bool last) {
    first_ = first;
    last_ = last;
  }
  // Before a pass writes the first gradient of a layer: waits until its windows are free.
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
    bool adds = false;  // to what the rank's shard has from earlier micro-batches
    bool last = false;  // of the step
    size_t bucket = 0;
    CommQueue::Ticket ticket = 0;
  };
  void start(size_t bucket);
  void start_in_window(size_t bucket);
  // Waits until a window's gradients are where they are kept.
  void settle(Held& held);
  // Sends a bucket's gradients, which lie in `all`, on their way: to be summed in `mine`, or to be
  // found in 16 bits by add_received().
  CommQueue::Ticket scatter(const Bucket& bucket, Tensor all, Tensor mine);
  void add_received(const Bucket& bucket, Tensor all, Tensor to, bool adds);
  // Behind what was started before: of the other copies what they have in `mine`.
  void sum_copies(const Bucket& bucket, Tensor mine);
  // Whether gradients travel in 16 bits: to others.
  bool rounds(const Bucket& bucket) const { return rounded_ && groups_.holders(bucket).size() > 1; }
  Tensor own_part(const Bucket& bucket, Tensor all) const;
  Tensor in_window(const Bucket& bucket) const;
  Tensor shard(const Bucket& bucket) const;
  void sum_over_tp(const Bucket& bucket);

  const Plan& plan_;
  const StagePlan& stage_;
  Device& device_;
  const RankGroups& groups_;
  CommQueue& tensor_;
  DataQueues& data_;
  const Tensor grads_, shards_, rounded_;
  const bool overlap_;
  std::vector<bool> started_;
  bool first_ = true, last_ = true;
  LayerBuckets buckets_;  // with windows
  std::vector<Held> windows_;
};

}  // namespace mtl
