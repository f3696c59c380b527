#include "runtime/model/tensor_parallel.h"

namespace mtl {

namespace {

Tensor part_of(Tensor all, int rank, int parts) {
  const int64_t rows = all.rows() / parts, cols = all.cols();
  return Tensor(all.slice(rank * rows * cols, rows * cols).data, all.dtype, {rows, cols});
}

}  // namespace

Tensor TensorParallel::own_rows(Tensor all) const {
  return sequence_ ? part_of(all, rank(), size()) : all;
}

Tensor TensorParallel::enter(Tensor stream, Tensor all) const {
  if (!sequence_) return stream;
  start_enter(stream, all).finish();
  return all;
}

Tensor TensorParallel::leave(Tensor partial) const {
  start_leave(partial).finish();
  return own_rows(partial);
}

TensorParallel::Pending TensorParallel::start_enter(Tensor stream, Tensor all) const {
  if (!sequence_) return {};
  return start(all.bytes(), [this, stream, all] { group_.all_gather(stream, all); });
}

TensorParallel::Pending TensorParallel::start_leave(Tensor partial) const {
  if (size() == 1) return {};
  return start(partial.bytes(), [this, partial] {
    if (sequence_) {
      group_.reduce_scatter(partial, own_rows(partial));
    } else {
      group_.all_reduce(partial);
    }
  });
}

void TensorParallel::all_reduce(Tensor x, Reduce op) const {
  if (size() == 1) return;
  device_.anew([this, x, op] {
    queue_.wait_all();
    group_.all_reduce(x, op);
  });
}

void TensorParallel::gather(Tensor part, Tensor all) const {
  device_.anew([this, part, all] {
    queue_.wait_all();
    group_.all_gather(part, all);
  });
}

TensorParallel::Pending TensorParallel::start(int64_t bytes, std::function<void()> work) const {
  Pending pending;
  pending.of_ = this;
  pending.ticket_ = std::make_shared<CommQueue::Ticket>(0);
  device_.anew([this, bytes, work = std::move(work), ticket = pending.ticket_] {
    *ticket = queue_.start(bytes, work);
  });
  return pending;
}

void TensorParallel::Pending::finish() {
  if (of_ == nullptr) return;
  of_->device_.anew([&queue = of_->queue_, ticket = ticket_] { queue.wait(*ticket); });
  of_ = nullptr;
}

}  // namespace mtl
