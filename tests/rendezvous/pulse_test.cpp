// Heartbeats and leases on a clock that the test turns.
#include "rendezvous/pulse.h"

#include <doctest/doctest.h>

using namespace mtl;
using namespace std::chrono_literals;
using PulseTime = Pulse::Time;

namespace {
constexpr PulseTime kPulseStart = 1000s;
constexpr PulseTime kDeadAfter = 5s;
}  // namespace

TEST_CASE("a controller believes until nothing has come for dead_after") {
  Pulse pulse(false, kDeadAfter, kPulseStart, 0.5);
  CHECK_FALSE(pulse.dead(kPulseStart + 4'999ms));
  CHECK(pulse.dead(kPulseStart + 5s));
  pulse.heard(kPulseStart + 3s);
  CHECK_FALSE(pulse.dead(kPulseStart + 7'999ms));
  CHECK(pulse.dead(kPulseStart + 8s));
  CHECK(pulse.silence(kPulseStart + 8s) == 5s);
}

TEST_CASE("an agent's lease runs from the sending of the last heartbeat that was answered") {
  Pulse pulse(true, kDeadAfter, kPulseStart, 0);
  pulse.heard(kPulseStart + 3s);  // a message is no answer
  CHECK_FALSE(pulse.dead(kPulseStart + 3'999ms));
  CHECK(pulse.dead(kPulseStart + 4s));
  // Sent at 2 s and answered only at 3.5 s: it counts from 2 s.
  pulse.answered(kPulseStart + 2s, 0s, kPulseStart + 3'500ms, 0s);
  CHECK_FALSE(pulse.dead(kPulseStart + 5'999ms));
  CHECK(pulse.dead(kPulseStart + 6s));
  // An older answer takes nothing away, and one from the future gives nothing.
  pulse.answered(kPulseStart + 1s, 0s, kPulseStart + 3'600ms, 0s);
  pulse.answered(kPulseStart + 100s, 0s, kPulseStart + 3'600ms, 0s);
  CHECK_FALSE(pulse.dead(kPulseStart + 5'999ms));
  CHECK(pulse.dead(kPulseStart + 6s));
}

TEST_CASE("an agent knows before the controller gives it up whatever the delays") {
  for (int up_ms = 0; up_ms <= 4'000; up_ms += 250) {
    for (int down_ms = 0; down_ms <= 4'000; down_ms += 250) {
      Pulse agent(true, kDeadAfter, kPulseStart, 0);
      Pulse controller(false, kDeadAfter, kPulseStart, 0);
      const PulseTime sent = kPulseStart + 1s;
      const PulseTime heard = sent + std::chrono::milliseconds(up_ms);
      if (!controller.dead(heard)) controller.heard(heard);
      const PulseTime answered = heard + std::chrono::milliseconds(down_ms);
      if (!agent.dead(answered)) agent.answered(sent, 0s, answered, 0s);
      // Then the cable is cut.
      for (PulseTime now = kPulseStart; now < kPulseStart + 20s; now += 50ms) {
        const bool split = controller.dead(now) && !agent.dead(now);
        CHECK_FALSE(split);
      }
    }
  }
}

TEST_CASE("a heartbeat is due every interval - who answers them sends none of its own") {
  Pulse agent(true, kDeadAfter, kPulseStart, 0.99);
  CHECK_FALSE(agent.beat_due(kPulseStart));
  CHECK(agent.beat_due(kPulseStart + 1s));
  agent.beat(kPulseStart + 1s);
  CHECK_FALSE(agent.beat_due(kPulseStart + 1'999ms));
  CHECK(agent.beat_due(kPulseStart + 2s));
  CHECK(agent.next_change() == kPulseStart + 2s);
  agent.beat_now();
  CHECK(agent.beat_due(kPulseStart));
  Pulse controller(false, kDeadAfter, kPulseStart, 0);
  for (PulseTime now = kPulseStart; now < kPulseStart + 10s; now += 1s) {
    controller.heard(now);
    controller.answering(now);
    CHECK_FALSE(controller.beat_due(now + 999ms));
  }
  CHECK(controller.beat_due(kPulseStart + 11s));
}

TEST_CASE(
    "after our own sleep a controller gives everybody one more interval - a lease stays over") {
  Pulse controller(false, kDeadAfter, kPulseStart, 0);
  Pulse agent(true, kDeadAfter, kPulseStart, 0);
  const PulseTime woken = kPulseStart + 1h;
  controller.overslept(woken);
  agent.overslept(woken);
  CHECK_FALSE(controller.dead(woken + 999ms));
  CHECK(controller.dead(woken + 1s));
  CHECK(agent.dead(woken));
  // A short sleep takes nothing away from who was heard just before.
  Pulse other(false, kDeadAfter, kPulseStart, 0);
  other.heard(kPulseStart + 10s);
  other.overslept(kPulseStart + 11s);
  CHECK_FALSE(other.dead(kPulseStart + 14'999ms));
}

TEST_CASE("the clock is taken from the shortest round trip of the recent ones") {
  Pulse pulse(true, kDeadAfter, kPulseStart, 0);
  CHECK(pulse.clock().round_trip < 0s);
  const auto exchange = [&](PulseTime round_trip, PulseTime peer_at_receipt, PulseTime clock) {
    pulse.answered(kPulseStart, peer_at_receipt, kPulseStart + round_trip, clock);
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
