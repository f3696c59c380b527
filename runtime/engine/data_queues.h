// The queues of the groups whose ranks hold the same parameters: everything but experts, and, where
// ranks divide them, experts (RankGroups::holders and copies).
#pragma once

#include <chrono>

#include "runtime/comm/queue.h"
#include "runtime/engine/rank_groups.h"

namespace mtl {

class DataQueues {
 public:
  DataQueues(bool asynchronous, const RankGroups& groups, StepClock* clock)
      : all_(asynchronous && travel(groups[Link::data], groups[Link::copies]),
             lane_of(groups[Link::data], groups[Link::copies]), clock),
        experts_(asynchronous && travel(groups[Link::expert_data], groups[Link::expert_copies]),
                 lane_of(groups[Link::expert_data], groups[Link::expert_copies]), clock) {}

  CommQueue& of(const Bucket& bucket) { return bucket.experts ? experts_ : all_; }
  void wait_all() {
    all_.wait_all();
    experts_.wait_all();
  }

 private:
  // Whether there is anybody to talk to. What a rank alone has is copied, on a GPU among its ops:
  // by the thread that enqueues these.
  static bool travel(const Communicator& holders, const Communicator& copies) {
    return holders.size() > 1 || copies.size() > 1;
  }
  // One for both; a group of one has none.
  static CommLane* lane_of(Communicator& holders, Communicator& copies) {
    return holders.size() > 1 ? holders.lane() : copies.lane();
  }

  CommQueue all_, experts_;
};

}  // namespace mtl
