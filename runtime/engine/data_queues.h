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
      : all_(queue_of(asynchronous, groups[Link::data], groups[Link::copies], clock)),
        experts_(queue_of(asynchronous, groups[Link::expert_data], groups[Link::expert_copies],
                          clock)) {}

  CommQueue& of(const Bucket& bucket) { return bucket.experts ? experts_ : all_; }
  void wait_all() {
    all_.wait_all();
    experts_.wait_all();
  }

 private:
  // One for both, on the lane of one: a group of one has none. What a rank has alone is copied, on
  // a GPU among its ops: by the thread that enqueues these.
  static CommQueue queue_of(bool asynchronous, Communicator& holders, Communicator& copies,
                            StepClock* clock) {
    Communicator& travels = holders.size() > 1 ? holders : copies;
    return CommQueue(asynchronous && travels.size() > 1, travels.lane(), clock);
  }

  CommQueue all_, experts_;
};

}  // namespace mtl
