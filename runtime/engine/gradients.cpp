#include "runtime/engine/gradients.h"

#include <algorithm>
#include <stdexcept>

#include "runtime/plan/weight_reads.h"

namespace mtl {

namespace {

// A bucket's memory once its gradients are rounded: what is sent, and what comes, a row from each
// rank.
struct Halves {
  Tensor sent, received;
};
Halves halves_of(const Tensor& all, DType wire, int ranks) {
  const int64_t n = all.numel();
  char* const begin = static_cast<char*>(all.data);
  return {Tensor(begin, wire, {n}), Tensor(begin + n * bytes_of(wire), wire, {ranks, n / ranks})};
}

}  // namespace

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
      rounded_(arena.find_tensor("grad_wire")),
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
  for (const size_t bucket : buckets_[static_cast<size_t>(layer + 1)]) {
    Held& held = windows_[stage_.layout.buckets[bucket].window];
    if (held.busy && !held.travels) {
      if (held.bucket == bucket) continue;
      throw std::logic_error("gradients of two buckets are written into one window");
    }
    settle(held);
    held = {.busy = true, .bucket = bucket};
  }
}

Tensor GradientReducer::in_window(const Bucket& bucket) const {
  return grads_.slice(stage_.layout.windows[bucket.window].offset, bucket.numel);
}

Tensor GradientReducer::shard(const Bucket& bucket) const {
  return shards_.slice(bucket.kept, bucket.numel / bucket.shards);
}

Tensor GradientReducer::own_part(const Bucket& bucket, Tensor all) const {
  const Communicator& group = groups_.holders(bucket);
  const int64_t length = bucket.numel / group.size();
  return all.slice(group.rank() * length, length);
}

CommQueue::Ticket GradientReducer::scatter(const Bucket& bucket, Tensor all, Tensor mine) {
  Communicator& group = groups_.holders(bucket);
  CommQueue& queue = data_.of(bucket);
  if (!rounds(bucket)) {
    return queue.start(all.bytes(), [&group, all, mine] { group.reduce_scatter(all, mine); });
  }
  const auto [sent, received] = halves_of(all, rounded_.dtype, group.size());
  // The first few by a detour; behind them as many as are done fit into the memory of these.
  int64_t done = std::min(rounded_.numel(), all.numel());
  device_.cast(all.slice(0, done), rounded_.slice(0, done));
  device_.copy(rounded_.slice(0, done), sent.slice(0, done));
  while (done < all.numel()) {
    const int64_t count = std::min(done, all.numel() - done);
    device_.cast(all.slice(done, count), sent.slice(done, count));
    done += count;
  }
  return queue.start(sent.bytes(),
                     [&group, from = sent, to = received] { group.all_to_all(from, to); });
}

void GradientReducer::add_received(const Bucket& bucket, Tensor all, Tensor to, bool adds) {
  const int ranks = groups_.holders(bucket).size();
  device_.sum_rows(halves_of(all, rounded_.dtype, ranks).received, to, adds);
}

void GradientReducer::sum_copies(const Bucket& bucket, Tensor mine) {
  Communicator& copies = groups_.copies(bucket);
  if (copies.size() == 1) return;
  data_.of(bucket).start(mine.bytes(), [&copies, mine] { copies.all_reduce(mine); });
}

void GradientReducer::start_in_window(size_t index) {
  const Bucket& bucket = stage_.layout.buckets[index];
  Held& held = windows_[bucket.window];
  sum_over_tp(bucket);
  const Tensor all = in_window(bucket);
  held.travels = true;
  held.adds = !first_;
  held.last = last_;
  held.ticket = scatter(bucket, all, first_ ? shard(bucket) : own_part(bucket, all));
  if (!overlap_) settle(held);
}

void GradientReducer::settle(Held& held) {
  if (!held.travels) return;
  const Bucket& bucket = stage_.layout.buckets[held.bucket];
  const Tensor all = in_window(bucket);
  data_.of(bucket).wait(held.ticket);
  if (rounds(bucket)) {
    add_received(bucket, all, shard(bucket), held.adds);
  } else if (held.adds) {
    device_.add(own_part(bucket, all), shard(bucket));
  }
  if (held.last) sum_copies(bucket, shard(bucket));
  held = {};
}

void GradientReducer::start(size_t index) {
  started_[index] = true;
  const Bucket& bucket = stage_.layout.buckets[index];
  sum_over_tp(bucket);
  Communicator& group = groups_.holders(bucket);
  const Tensor all = grads_.slice(bucket.offset, bucket.numel);
  if (bucket.shards > 1) {
    scatter(bucket, all, own_part(bucket, all));
  } else if (group.size() > 1) {
    data_.of(bucket).start(all.bytes(), [&group, all] { group.all_reduce(all); });
  }
  // What is rounded, others have to add first.
  if (!rounded_ || bucket.shards == 1) sum_copies(bucket, own_part(bucket, all));
}

void GradientReducer::layer_done(int chunk, int64_t layer) {
  if (shards_) {
    for (const size_t bucket : buckets_[static_cast<size_t>(layer + 1)]) {
      if (stage_.layout.buckets[bucket].layer == layer) start_in_window(bucket);
    }
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
  if (shards_) return data_.wait_all();
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
  if (rounded_) {
    for (const Bucket& bucket : stage_.layout.buckets) {
      if (bucket.shards == 1) continue;
      const Tensor all = grads_.slice(bucket.offset, bucket.numel);
      // Where the rank's part is, there may be something that was received.
      const Tensor sum = all.slice(0, bucket.numel / bucket.shards);
      add_received(bucket, all, sum, false);
      if (own_part(bucket, all).data != sum.data) device_.copy(sum, own_part(bucket, all));
      sum_copies(bucket, own_part(bucket, all));
    }
    data_.wait_all();
  }
  started_.assign(started_.size(), false);
}

}  // namespace mtl
