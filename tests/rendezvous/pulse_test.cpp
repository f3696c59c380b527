// Heartbeats and leases on a clock that the test turns.
#include "rendezvous/pulse.h"

#include <doctest/doctest.h>

using namespace mtl;
using namespace std::chrono_literals;
using Time = Pulse::Time;

namespace {
constexpr Time kStart = 1000s;
constexpr Time kDeadAfter = 5s;
}  // namespace

TEST_CASE("a controller believes until nothing has come for dead_after") {
  Pulse pulse(false, kDeadAfter, kStart, 0.5);
  CHECK_FALSE(pulse.dead(kStart + 4'999ms));
  CHECK(pulse.dead(kStart + 5s));
  pulse.heard(kStart + 3s);
  CHECK_FALSE(pulse.dead(kStart + 7'999ms));
  CHECK(pulse.dead(kStart + 8s));
  CHECK(pulse.silence(kStart + 8s) == 5s);
}

TEST_CASE("an agent's lease runs from the sending of the last heartbeat that was answered") {
  Pulse pulse(true, kDeadAfter, kStart, 0);
  pulse.heard(kStart + 3s);  // a message is no answer
  CHECK_FALSE(pulse.dead(kStart + 3'999ms));
  CHECK(pulse.dead(kStart + 4s));
  // Sent at 2 s and answered only at 3.5 s: it counts from 2 s.
  pulse.answered(kStart + 2s, 0s, kStart + 3'500ms, 0s);
  CHECK_FALSE(pulse.dead(kStart + 5'999ms));
  CHECK(pulse.dead(kStart + 6s));
  // An older answer takes nothing away, and one from the future gives nothing.
  pulse.answered(kStart + 1s, 0s, kStart + 3'600ms, 0s);
  pulse.answered(kStart + 100s, 0s, kStart + 3'600ms, 0s);
  CHECK_FALSE(pulse.dead(kStart + 5'999ms));
  CHECK(pulse.dead(kStart + 6s));
}

TEST_CASE("an agent knows before the controller gives it up whatever the delays") {
  for (int up_ms = 0; up_ms <= 4'000; up_ms += 250) {
    for (int down_ms = 0; down_ms <= 4'000; down_ms += 250) {
      Pulse agent(true, kDeadAfter, kStart, 0);
      Pulse controller(false, kDeadAfter, kStart, 0);
      const Time sent = kStart + 1s;
      const Time heard = sent + std::chrono::milliseconds(up_ms);
      if (!controller.dead(heard)) controller.heard(heard);
      const Time answered = heard + std::chrono::milliseconds(down_ms);
      if (!agent.dead(answered)) agent.answered(sent, 0s, answered, 0s);
      // Then the cable is cut.
      for (Time now = kStart; now < kStart + 20s; now += 50ms) {
        const bool split = controller.dead(now) && !agent.dead(now);
        CHECK_FALSE(split);
      }
    }
  }
}

TEST_CASE("a heartbeat is due every interval - who answers them sends none of its own") {
  Pulse agent(true, kDeadAfter, kStart, 0.99);
  CHECK_FALSE(agent.beat_due(kStart));
  CHECK(agent.beat_due(kStart + 1s));
  agent.beat(kStart + 1s);
  CHECK_FALSE(agent.beat_due(kStart + 1'999ms));
  CHECK(agent.beat_due(kStart + 2s));
  CHECK(agent.next_change() == kStart + 2s);
  agent.beat_now();
  CHECK(agent.beat_due(kStart));
  Pulse controller(false, kDeadAfter, kStart, 0);
  for (Time now = kStart; now < kStart + 10s; now += 1s) {
    controller.heard(now);
    controller.answering(now);
    CHECK_FALSE(controller.beat_due(now + 999ms));
  }
  CHECK(controller.beat_due(kStart + 11s));
}

TEST_CASE(
    "after our own sleep a controller gives everybody one more interval - a lease stays over") {
  Pulse controller(false, kDeadAfter, kStart, 0);
  Pulse agent(true, kDeadAfter, kStart, 0);
  const Time woken = kStart + 1h;
  controller.overslept(woken);
  agent.overslept(woken);
  CHECK_FALSE(controller.dead(woken + 999ms));
  CHECK(controller.dead(woken + 1s));
  CHECK(agent.dead(woken));
  // A short sleep takes nothing away from who was heard just before.
  Pulse other(false, kDeadAfter, kStart, 0);
  other.heard(kStart + 10s);
  other.overslept(kStart + 11s);
  CHECK_FALSE(other.dead(kStart + 14'999ms));
}

TEST_CASE("the clock is taken from the shortest round trip of the recent ones") {
  Pulse pulse(true, kDeadAfter, kStart, 0);
  CHECK(pulse.clock().round_trip < 0s);
  const auto exchange = [&](Time round_trip, Time peer_at_receipt, Time clock) {
    pulse.answered(kStart, peer_at_receipt, kStart + round_trip, clock);
  };
  // The peer is 7 s ahead; the way there took 90 ms, the way back 10: the middle is 40 ms off.
  exchange(100ms, 7s + 90ms, 100ms);
  CHECK(pulse.clock().ahead == 7s + 40ms);
  exchange(2ms, 7s + 1ms, 2ms);
  CHECK(pulse.clock().ahead == 7s);
  exchange(50ms, 8s, 50ms);
  CHECK(pulse.clock().ahead == 7s);
  // Sixteen later the good one is forgotten: clocks drift and are set.
  for (int i = 0; i < 16; ++i) exchange(10ms, 9s + 5ms, 10ms);
  CHECK(pulse.clock().ahead == 9s);
}
