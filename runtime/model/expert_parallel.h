// Expert parallelism (GShard, arXiv 2006.16668): each of the `ep` ranks has E / ep of the experts
// and tokens of its own. Rows of tokens go to the ranks of the experts that they have chosen and
// come back (all-to-all). No token is dropped.
//
// Rank r has the experts r, r + ep, r + 2 ep, ...: rows sorted by expert, as routing leaves them,
// are then E / ep rounds of one block for each rank, and what a rank receives in a round is the
// rows of one of its experts, by rank. So neither side puts rows into another order.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"

namespace mtl {

// How many rows go where: of each rank, how many each expert gets.
class RowCounts {
 public:
  // `counts` [ranks, experts], row by row, as `rank` sees them.
  RowCounts(std::vector<int32_t> counts, int ranks, int rank);
  RowCounts() = default;

  // Rows of the rank's expert of that round.
  int64_t of_expert(int64_t round) const;
  int64_t own() const { return own_; }            // that the rank's tokens have
  int64_t arriving() const { return arriving_; }  // at the rank's experts
  int64_t most_arriving() const;                  // at any rank's
  // Elements of rows of `cols` that go to each rank, and come from each, round by round.
  std::vector<int64_t> sent(int64_t cols) const;
  std::vector<int64_t> received(int64_t cols) const;

 private:
  int64_t at(int rank, int64_t expert) const {
    return counts_[static_cast<size_t>(rank * experts_ + expert)];
  }
  int64_t arriving_at(int rank) const;
  int64_t own_of(int rank) const;

  std::vector<int32_t> counts_;
  int ranks_ = 1, rank_ = 0;
  int64_t experts_ = 0;
  int64_t own_ = 0, arriving_ = 0;
};

class ExpertParallel {
 public:
  // They outlive this. All of it depends on what tokens choose: a pass that `device` replays does
  // it anew each time (Device::anew), and so does whoever calls it.
  ExpertParallel(Device& device, Communicator& group) : device_(device), group_(group) {}

  int size() const { return group_.size(); }
  int rank() const { return group_.rank(); }
  // The number of the rank's expert in that place.
  int64_t expert(int64_t place) const { return place * size() + rank(); }

  // `counts` i32 [size, E]: of which the rank has filled its own row. Brings all together, there
  // and on the host, which waits for the device.
  RowCounts share(Tensor counts) const;
  // What has been brought together.
  RowCounts shared(Tensor counts) const;
  // `own` [counts.own(), c] becomes `arrived` [counts.arriving(), c], and back.
  void to_experts(const RowCounts& counts, Tensor own, Tensor arrived) const;
  void from_experts(const RowCounts& counts, Tensor arrived, Tensor own) const;

 private:
  Device& device_;
  Communicator& group_;
};

}  // namespace mtl
