#include "launcher/ssh/events.h"

#include <cerrno>
#include <cstring>

#include <sys/eventfd.h>

#include <fmt/format.h>

namespace mtl::ssh {

EventQueue::EventQueue() : readable_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!readable_) {
    throw Error(Exit::environment,
                {.code = "launch.descriptor",
                 .what = fmt::format("cannot wait for hosts: {}", strerror(errno))});
  }
}

void EventQueue::push(FleetEvent event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
  eventfd_write(readable_.get(), 1);
}

std::optional<FleetEvent> EventQueue::pop() {
  const std::lock_guard lock(mutex_);
  if (events_.empty()) return std::nullopt;
  FleetEvent event = std::move(events_.front());
  events_.pop_front();
  if (events_.empty()) {
    eventfd_t ignored;
    eventfd_read(readable_.get(), &ignored);
  }
  return event;
}

}  // namespace mtl::ssh
