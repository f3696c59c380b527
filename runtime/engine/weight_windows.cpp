#include "runtime/engine/weight_windows.h"

#include <algorithm>
#include <stdexcept>

namespace mtl {

WeightWindows::Weights::Weights(const Plan& plan, const ParamLayout& of, Tensor in_shards,
                                Tensor in_windows)
    : layout(of),
      shards(in_shards),
      windows(in_windows),
      buckets(buckets_by_layer(plan.table, of, plan.model.layers)),
      contents(of),
      gathers(of.windows.size(), 0) {}

WeightWindows::WeightWindows(const Plan& plan, const StagePlan& stage, const Arena& arena,
                             const RankGroups& groups, DataQueues& data, bool ahead)
    : groups_(groups), data_(data), ahead_(ahead) {
  if (!stage.layout.shards_weights()) return;
  weights_.emplace_back(plan, stage.layout, arena.tensor("weight_shards"), arena.tensor("weights"));
  if (stage.frozen.params.empty()) return;
  weights_.emplace_back(plan, stage.frozen, arena.tensor(kFrozenShards), arena.tensor(kFrozen));
}

void WeightWindows::begin(std::span<const int64_t> reads) {
  reads_.assign(reads.begin(), reads.end());
  at_ = 0;
}

void WeightWindows::read(int64_t layer) {
  if (weights_.empty()) return;
  if (at_ == reads_.size() || reads_[at_] != layer) {
    throw std::logic_error("a pass reads weights in another order than planned");
  }
  const bool more = ++at_ < reads_.size() && ahead_;
  for (Weights& weights : weights_) read(weights, layer, more);
}

void WeightWindows::read(Weights& weights, int64_t layer, bool more) {
  const std::vector<Bucket>& buckets = weights.layout.buckets;
  for (const size_t bucket : weights.buckets_of(layer)) gather(weights, bucket);
  for (const size_t bucket : weights.buckets_of(layer)) {
    CommQueue::Ticket& gathered = weights.gathers[buckets[bucket].window];
    if (gathered != 0) data_.of(buckets[bucket]).wait(gathered);
    gathered = 0;
  }
  if (!more) return;
  // What another window held has been read: all ops that do are enqueued by now.
  for (const size_t next : weights.buckets_of(reads_[at_])) {
    const bool in_use = std::ranges::any_of(weights.buckets_of(layer), [&](size_t bucket) {
      return buckets[bucket].window == buckets[next].window;
    });
    if (!in_use) gather(weights, next);
  }
}

void WeightWindows::changed() {
  for (Weights& weights : weights_) weights.contents.clear();
}

void WeightWindows::gather(Weights& weights, size_t index) {
  if (!weights.contents.put(index)) return;
  const Bucket& bucket = weights.layout.buckets[index];
  const Window& window = weights.layout.windows[bucket.window];
  const Tensor all = weights.windows.slice(window.offset, bucket.numel);
  const Tensor mine = weights.shards.slice(bucket.kept, bucket.numel / bucket.shards);
  Communicator& group = groups_.holders(bucket);
  weights.gathers[bucket.window] =
      data_.of(bucket).start(all.bytes(), [&group, mine, all] { group.all_gather(mine, all); });
}

}  // namespace mtl
