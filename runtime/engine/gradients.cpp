#include "runtime/engine/gradients.h"

#include <stdexcept>

#include "runtime/plan/weight_reads.h"

namespace mtl {

GradientReducer::GradientReducer(const Plan& plan, const StagePlan& stage, Device& device,
                                 const Arena& arena, const RankGroups& groups, CommQueue& tensor,
                                 DataQueues& data, bool overlap)
    : plan_(plan),
      stage_(stage),
      device_(device),
      groups_(groups),
      tensor_(tensor),
      data_(data),
      grads_(arena.tensor("grads")),
      shards_(arena.find_tensor("grad_shards")),
      overlap_(overlap),
      started_(stage.layout.buckets.size(), false),
      windows_(stage.layout.windows.size()) {
  if (shards_) buckets_ = buckets_by_layer(plan.table, stage.layout, plan.model.layers);
}

void GradientReducer::sum_over_tp(const Bucket& bucket) {
  const int tp = groups_[Link::tensor].size();
  if (tp == 1) return;
  tensor_.wait_all();
  for (size_t i = bucket.first_param; i < bucket.end_param; ++i) {
    const ParamPlacement& param = stage_.layout.params[i];
    const ParamRow& row = plan_.table[param.row];
    const int copies = tp_copies(row, tp);
    if (copies == 1 || !row.grad_sum_over.has(Axis::tp)) continue;
    groups_[copies == tp ? Link::tensor : Link::kv].all_reduce(
        grads_.slice(stage_.layout.gradient_offset(param), param.numel));
  }
}

void GradientReducer::claim(int64_t layer) {
  if (!shards_) return;
  const size_t bucket = buckets_[static_cast<size_t>(layer + 1)];
  Held& held = windows_[stage_.layout.buckets[bucket].window];
  if (held.busy && !held.travels) {
    if (held.bucket == bucket) return;
    throw std::logic_error("gradients of two buckets are written into one window");
  }
  settle(held);
  held = {.busy = true, .bucket = bucket};
}

Tensor GradientReducer::shard(const Bucket& bucket) const {
  return shards_.slice(bucket.kept, bucket.numel / bucket.shards);
}

void GradientReducer::start_in_window(size_t index) {
  const Bucket& bucket = stage_.layout.buckets[index];
  Held& held = windows_[bucket.window];
  sum_over_tp(bucket);
  Communicator& group = groups_[Link::data];
  const Tensor all = grads_.slice(stage_.layout.windows[bucket.window].offset, bucket.numel);
  const int64_t length = bucket.numel / group.size();
  if (!first_) held.sum = all.slice(group.rank() * length, length);
  const Tensor mine = first_ ? shard(bucket) : held.sum;
  held.travels = true;
  held.ticket =
      data_.of(bucket).start(all.bytes(), [&group, all, mine] { group.reduce_scatter(all, mine); });
  if (!overlap_) settle(held);
}

void GradientReducer::settle(Held& held) {
  if (!held.travels) return;
  const Bucket& bucket = stage_.layout.buckets[held.bucket];
  data_.of(bucket).wait(held.ticket);
  if (held.sum) device_.add(held.sum, shard(bucket));
  held = {};
}

void GradientReducer::start(size_t index) {
  started_[index] = true;
  const Bucket& bucket = stage_.layout.buckets[index];
  sum_over_tp(bucket);
  Communicator& group = groups_.holders(bucket);
  if (group.size() == 1) return;
  const Tensor all = grads_.slice(bucket.offset, bucket.numel);
  if (bucket.shards == 1) {
    data_.of(bucket).start(all.bytes(), [&group, all] { group.all_reduce(all); });
    return;
  }
  const int64_t length = bucket.numel / group.size();
  const Tensor mine = all.slice(group.rank() * length, length);
  data_.of(bucket).start(all.bytes(), [&group, all, mine] { group.reduce_scatter(all, mine); });
}

void GradientReducer::layer_done(int chunk, int64_t layer) {
  if (shards_) {
    const size_t bucket = buckets_[static_cast<size_t>(layer + 1)];
    if (stage_.layout.buckets[bucket].layer == layer) start_in_window(bucket);
    return;
  }
  if (!overlap_) return;
  const std::vector<Bucket>& buckets = stage_.layout.buckets;
  for (size_t i = buckets.size(); i-- > 0;) {
    // A tied embedding waits for the other stage's part.
    if (started_[i] || buckets[i].tied) continue;
    if (buckets[i].chunk == chunk && buckets[i].layer >= layer) start(i);
  }
}

void GradientReducer::finish() {
  for (Held& held : windows_) settle(held);
  if (shards_) return;
  // The two parts of a tied embedding are added before those of the replicas, as on one rank.
  if (groups_[Link::tied].size() > 1) {
    for (const ParamPlacement& param : stage_.layout.params) {
      if (plan_.table[param.row].slot != "tokens") continue;
      groups_[Link::tied].all_reduce(grads_.slice(param.offset, param.numel));
    }
  }
  for (size_t i = started_.size(); i-- > 0;) {
    if (!started_[i]) start(i);
  }
  data_.wait_all();
  started_.assign(started_.size(), false);
}

}  // namespace mtl
