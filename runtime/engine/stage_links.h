// What a pipeline stage sends to its neighbours and receives from them. Sends leave while the stage
// goes on computing; what is sent stays as it is until `sent` has been called.
#pragma once

#include "runtime/comm/queue.h"
#include "runtime/device/tensor.h"
#include "runtime/engine/rank_groups.h"

namespace mtl {

class StageLinks {
 public:
  // `groups` outlives this. Virtual stages go round: the first stage follows the last one.
  StageLinks(const RankGroups& groups, bool overlap, StepClock* clock)
      : groups_(groups),
        overlap_(overlap),
        activations_(true, groups[Link::activations].lane(), clock),
        gradients_(true, groups[Link::gradients].lane(), clock) {}

  // Activations go to the next stage, gradients to the one before.
  void send(Link link, Tensor x);
  void recv(Link link, Tensor x);
  // Waits until what was sent over the link may be written again.
  void sent(Link link) { queue(link).wait_all(); }

 private:
  CommQueue& queue(Link link) { return link == Link::activations ? activations_ : gradients_; }
  int neighbour(Link link, bool sends) const;

  const RankGroups& groups_;
  const bool overlap_;
  CommQueue activations_, gradients_;
};

}  // namespace mtl
