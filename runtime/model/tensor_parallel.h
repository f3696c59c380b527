// Where tensor-parallel regions begin and end. Outside of them the residual stream is replicated,
// or, with sequence parallelism, each rank holds 1/tp of its rows (tokens): rank r rows
// [r n/tp, (r+1) n/tp). Megatron-LM's conjugate operators f, g (arXiv 1909.08053) and g-bar
// (2205.05198).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "runtime/comm/communicator.h"
#include "runtime/comm/queue.h"
#include "runtime/device/device.h"

namespace mtl {

class TensorParallel {
 public:
  // `queue` runs what start_* begins. A pass that `device` replays communicates anew each time.
  // They outlive this.
  TensorParallel(Device& device, Communicator& group, CommQueue& queue, bool sequence)
      : device_(device), group_(group), queue_(queue), sequence_(sequence) {}

  int size() const { return group_.size(); }
  int rank() const { return group_.rank(); }
  bool sequence() const { return sequence_; }
  // How many ranks divide the residual stream.
  int stream_parts() const { return sequence_ ? size() : 1; }
  // This rank's rows of the residual stream, of all rows.
  Tensor own_rows(Tensor all) const;

  // Begins a region: the rows of all ranks, gathered into `all` from everybody's `stream`, or
  // `stream` itself when that is already all rows.
  Tensor enter(Tensor stream, Tensor all) const;
  // Ends a region: sums the ranks' partial results, in place; the rank's part of the stream.
  Tensor leave(Tensor partial) const;

  // The same while the caller goes on computing; the results are there after finish().
  class Pending {
   public:
    void finish();

   private:
    friend class TensorParallel;
    const TensorParallel* of_ = nullptr;  // null: there was nothing to do
    // Another one each time that this is done.
    std::shared_ptr<CommQueue::Ticket> ticket_;
  };
  Pending start_enter(Tensor stream, Tensor all) const;
  Pending start_leave(Tensor partial) const;

  // Sums or takes the maximum of small results (cross-entropy).
  void all_reduce(Tensor x, Reduce op = Reduce::sum) const;
  // A tensor kept in parts (recompute.distribute): this rank's part, and all of it from the parts.
  void gather(Tensor part, Tensor all) const;

 private:
  Pending start(int64_t bytes, std::function<void()> work) const;

  Device& device_;
  Communicator& group_;
  CommQueue& queue_;
  bool sequence_;
};

}  // namespace mtl
