// ZeRO-3: a rank keeps its shards of the weights, and a layer's weights are whole in a window of
// memory while a pass reads them. The next layer's travel meanwhile.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine/data_queues.h"
#include "runtime/model/context.h"
#include "runtime/plan/weight_reads.h"

namespace mtl {

// Does nothing where the plan keeps weights whole. All ranks that hold the same make the same
// calls.
class WeightWindows {
 public:
  // `ahead`: the next layer's weights are gathered before they are needed. References outlive this.
  WeightWindows(const Plan& plan, const StagePlan& stage, const Arena& arena,
                const RankGroups& groups, DataQueues& data, bool ahead);
  // A pass begins, which reads the layers' weights in this order (plan/weight_reads.h).
  void begin(std::span<const int64_t> reads);
  // Before a layer's weights are read: waits until they are whole.
  void read(int64_t layer);
  // The shards are new.
  void changed();

 private:
  // Of what is trained, or of what is not.
  struct Weights {
    Weights(const Plan& plan, const ParamLayout& layout, Tensor shards, Tensor windows);
    const std::vector<size_t>& buckets_of(int64_t layer) const {
      return buckets[static_cast<size_t>(layer + 1)];
    }
    const ParamLayout& layout;
    Tensor shards, windows;
    LayerBuckets buckets;  // from layer -1 on
    WindowContents contents;
    std::vector<CommQueue::Ticket> gathers;  // by window; 0 = whole
  };
  void read(Weights& weights, int64_t layer, bool more);
  void gather(Weights& weights, size_t bucket);

  const RankGroups& groups_;
  DataQueues& data_;
  const bool ahead_;
  std::vector<Weights> weights_;  // none where they stay whole
  std::vector<int64_t> reads_;
  size_t at_ = 0;
};

}  // namespace mtl
