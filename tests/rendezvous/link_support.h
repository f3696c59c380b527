// What the tests of the links share: waiting for events, always bounded.
#pragma once

#include <chrono>
#include <optional>
#include <poll.h>
#include <string>

#include <doctest/doctest.h>

#include "rendezvous/link.h"
#include "support/processes.h"

namespace mtl::test {

inline const std::string kToken = "the run's token";

inline LinkHubOptions hub_options(std::chrono::milliseconds dead_after = kPatience) {
  LinkHubOptions options;
  options.token = kToken;
  options.dead_after = dead_after;
  return options;
}

inline std::optional<LinkEvent> next_event(LinkHub& hub,
                                           std::chrono::milliseconds limit = kPatience) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (;;) {
    if (auto event = hub.next()) return event;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return std::nullopt;
    pollfd waiting = {hub.fd(), POLLIN, 0};
    ::poll(&waiting, 1, static_cast<int>(left.count()));
  }
}

inline LinkEvent expect(LinkHub& hub, LinkEvent::Kind kind) {
  const auto event = next_event(hub);
  REQUIRE(event);
  if (event->kind == LinkEvent::lost) INFO("lost: ", event->reason);
  REQUIRE(static_cast<int>(event->kind) == static_cast<int>(kind));
  return *event;
}

inline LinkMessage message(uint16_t kind, std::string body, int64_t generation = 0) {
  LinkMessage made;
  made.kind = kind;
  made.generation = generation;
  made.body = std::move(body);
  return made;
}

}  // namespace mtl::test
