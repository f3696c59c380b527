#include "launcher/job/dial.h"

#include <algorithm>
#include <poll.h>

namespace mtl {

namespace {

using Clock = std::chrono::steady_clock;

// How far an attempt got: who was heard at all says more than who was not.
int distance(LinkEvent::Loss loss) {
  switch (loss) {
    case LinkEvent::unknown_name:
      return 0;
    case LinkEvent::unreachable:
      return 1;
    case LinkEvent::refused:
      return 2;
    default:
      return 3;
  }
}

}  // namespace

LinkEvent dial_first(LinkHub& hub, const std::vector<DialTarget>& targets,
                     std::chrono::milliseconds patience) {
  // The hub reports each attempt when its patience is over; this is for one that never does.
  const auto until = Clock::now() + patience + std::chrono::seconds(2);
  std::vector<LinkId> links;
  for (const DialTarget& target : targets) {
    links.push_back(hub.connect(target.address, target.port, patience));
  }
  LinkEvent result;
  result.kind = LinkEvent::lost;
  result.loss = LinkEvent::unknown_name;
  result.reason = "there is no address to try";
  while (!links.empty() && Clock::now() < until) {
    while (const std::optional<LinkEvent> event = hub.next()) {
      const auto link = std::find(links.begin(), links.end(), event->link);
      if (link == links.end()) continue;
      if (event->kind == LinkEvent::opened) {
        links.erase(link);
        for (const LinkId other : links) hub.close(other);
        return *event;
      }
      if (event->kind != LinkEvent::lost) continue;
      links.erase(link);
      if (result.link == 0 || distance(event->loss) > distance(result.loss)) result = *event;
    }
    if (links.empty()) break;
    pollfd polled{hub.fd(), POLLIN, 0};
    poll(&polled, 1, 200);
  }
  for (const LinkId link : links) hub.close(link);
  return result;
}

}  // namespace mtl
