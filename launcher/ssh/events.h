// Events on their way from the fleet's thread to its owner.
#pragma once

#include <deque>
#include <mutex>
#include <optional>

#include "common/files.h"
#include "launcher/ssh/fleet.h"

namespace mtl::ssh {

class EventQueue {
 public:
  EventQueue();
  void push(FleetEvent event);
  std::optional<FleetEvent> pop();
  int fd() const { return readable_.get(); }

 private:
  Fd readable_;
  std::mutex mutex_;
  std::deque<FleetEvent> events_;
};

}  // namespace mtl::ssh
