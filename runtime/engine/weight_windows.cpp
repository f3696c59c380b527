#include "runtime/engine/weight_windows.h"

#include <algorithm>
#include <stdexcept>

namespace mtl {

WeightWindows::WeightWindows(const Plan& plan, const StagePlan& stage, const Arena& arena,
                             const RankGroups& groups, DataQueues& data, bool ahead)
    : stage_(stage),
      groups_(groups),
      data_(data),
      ahead_(ahead),
      shards_(arena.find_tensor("weight_shards")),
      windows_(arena.tensor("weights")),
      buckets_(shards_ ? buckets_by_layer(plan.table, stage.layout, plan.model.layers)
                       : LayerBuckets()),
      contents_(stage.layout),
      gathers_(stage.layout.windows.size(), 0) {}

void WeightWindows::begin(std::span<const int64_t> reads) {
  reads_.assign(reads.begin(), reads.end());
  at_ = 0;
}

void WeightWindows::read(int64_t layer) {
  if (!shards_) return;
  if (at_ == reads_.size() || reads_[at_] != layer) {
    throw std::logic_error("a pass reads weights in another order than planned");
  }
  const std::vector<Bucket>& buckets = stage_.layout.buckets;
  for (const size_t bucket : buckets_of(layer)) gather(bucket);
  for (const size_t bucket : buckets_of(layer)) {
    CommQueue::Ticket& gathered = gathers_[buckets[bucket].window];
    if (gathered != 0) data_.of(buckets[bucket]).wait(gathered);
    gathered = 0;
  }
  if (++at_ == reads_.size() || !ahead_) return;
  // What another window held has been read: all ops that do are enqueued by now.
  for (const size_t next : buckets_of(reads_[at_])) {
    const bool in_use = std::ranges::any_of(buckets_of(layer), [&](size_t bucket) {
      return buckets[bucket].window == buckets[next].window;
    });
    if (!in_use) gather(next);
  }
}

void WeightWindows::changed() {
  contents_.clear();
}

void WeightWindows::gather(size_t index) {
  if (!contents_.put(index)) return;
  const ParamLayout& layout = stage_.layout;
  const Bucket& bucket = layout.buckets[index];
  const Tensor all = windows_.slice(layout.windows[bucket.window].offset, bucket.numel);
  const Tensor mine = shards_.slice(bucket.kept, bucket.numel / bucket.shards);
  Communicator& group = groups_.holders(bucket);
  gathers_[bucket.window] =
      data_.of(bucket).start(all.bytes(), [&group, mine, all] { group.all_gather(mine, all); });
}

}  // namespace mtl
