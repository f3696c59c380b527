// The queues of the groups whose ranks hold the same parameters: everything but experts, and, where
// ranks divide them, experts (RankGroups::holders).
#pragma once

#include "runtime/comm/queue.h"
#include "runtime/engine/rank_groups.h"

namespace mtl {

class DataQueues {
 public:
  DataQueues(bool asynchronous, const RankGroups& groups)
      : all_(asynchronous, groups[Link::data].lane()),
        experts_(asynchronous, groups[Link::expert_data].lane()) {}

  CommQueue& of(const Bucket& bucket) { return bucket.experts ? experts_ : all_; }
  void wait_all() {
    all_.wait_all();
    experts_.wait_all();
  }

 private:
  CommQueue all_, experts_;
};

}  // namespace mtl
