#include "runtime/engine/stage_links.h"

namespace mtl {

int StageLinks::neighbour(Link link, bool sends) const {
  const Communicator& group = groups_[link];
  const int step = (link == Link::activations) == sends ? 1 : -1;
  return (group.rank() + step + group.size()) % group.size();
}

void StageLinks::send(Link link, Tensor x) {
  // Messages that may not fit into the transport's buffer must not keep this rank from receiving:
  // its neighbour might wait for that.
  constexpr int64_t kAlwaysFits = 8 << 20;
  Communicator& group = groups_[link];
  const auto work = [&group, x, to = neighbour(link, true)] { group.send(x, to); };
  if (x.bytes() > kAlwaysFits) {
    queue(link).start(work);
  } else {
    queue(link).start(overlap_ ? x.bytes() : 0, work);
  }
}

void StageLinks::recv(Link link, Tensor x) {
  groups_[link].recv(x, neighbour(link, false));
}

}  // namespace mtl
