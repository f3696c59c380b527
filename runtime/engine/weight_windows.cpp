#include "runtime/engine/weight_windows.h"

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
                       : std::vector<size_t>()),
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
  const size_t bucket = buckets_[static_cast<size_t>(layer + 1)];
  const size_t window = stage_.layout.buckets[bucket].window;
  gather(bucket);
  if (gathers_[window] != 0) data_.of(stage_.layout.buckets[bucket]).wait(gathers_[window]);
  gathers_[window] = 0;
  if (++at_ == reads_.size() || !ahead_) return;
  // What the other window held has been read: all ops that do are enqueued by now.
  const size_t next = buckets_[static_cast<size_t>(reads_[at_] + 1)];
  if (stage_.layout.buckets[next].window != window) gather(next);
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
  Communicator& group = groups_[Link::data];
  gathers_[bucket.window] =
      data_.of(bucket).start(all.bytes(), [&group, mine, all] { group.all_gather(mine, all); });
}

}  // namespace mtl
