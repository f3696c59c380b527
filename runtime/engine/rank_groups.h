// The groups of ranks that a rank talks to, one communicator for each kind of link.
#pragma once

#include <array>
#include <memory>

#include "runtime/comm/communicator.h"
#include "runtime/device/step_clock.h"
#include "runtime/plan/plan.h"

namespace mtl {

class RankGroups {
 public:
  // All ranks make them together, in the same order. What they do is waiting in `clock`, which
  // outlives this.
  RankGroups(const Plan& plan, CommWorld& world, StepClock* clock = nullptr);
  // A group of one where the layout needs none.
  Communicator& operator[](Link link) const { return *groups_[static_cast<size_t>(link)]; }
  // Of the ranks that hold what is in a bucket, or one copy of its shards; and of those that have
  // the same shard of the other copies. What both do beside the device's ops is in one order.
  Communicator& holders(const Bucket& bucket) const {
    return (*this)[bucket.experts ? Link::expert_data : Link::data];
  }
  Communicator& copies(const Bucket& bucket) const {
    return (*this)[bucket.experts ? Link::expert_copies : Link::copies];
  }
  Communicator& world() const { return *world_; }

 private:
  std::array<std::unique_ptr<Communicator>, kLinks> groups_;
  std::unique_ptr<Communicator> world_;
};

}  // namespace mtl
