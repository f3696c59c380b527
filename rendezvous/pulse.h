// Whether the other end of a link is alive, and how far its clock is ahead: when to send a
// heartbeat, until when to believe in the peer. Pure: the time is given.
//
// A side that is not leased (the controller) believes until nothing has come for dead_after. A
// leased side (the agent) believes until 0.8 * dead_after after it sent the last heartbeat that was
// answered: the controller heard that one later than it was sent, so it gives up later than we do.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <optional>

namespace mtl {

class Pulse {
 public:
  using Time = std::chrono::nanoseconds;  // since the machine started, sleep included

  // `jitter` in [0, 1): where in its interval the first heartbeat falls.
  Pulse(bool leased, Time dead_after, Time now, double jitter);

  void heard(Time now) { heard_ = now; }
  // `ahead` (of the peer's clock) is right to half the round trip, so the sample with the shortest
  // one, of the recent ones, is believed.
  void saw_clock(Time round_trip, Time ahead);
  // The answer to the heartbeat that was sent at `sent`; the peer's clock showed `peer_clock` when
  // it answered, ours shows `clock` now.
  void answered(Time sent, Time peer_clock, Time now, Time clock);
  // The program itself did not run for a while (stopped, starved, asleep): what the peers sent may
  // still wait to be read, so they get one more interval. A lease is not extended by that.
  void overslept(Time now);

  // The peer's heartbeat was answered. Who is not leased needs none of its own then.
  void answering(Time now);

  bool beat_due(Time now) const { return now >= next_beat_; }
  void beat(Time now) { next_beat_ = now + interval_; }
  void beat_now() { next_beat_ = Time(0); }
  // For how long the peer has been quiet (leased: has not answered).
  Time silence(Time now) const { return now - (leased_ ? lease_from_ : heard_); }
  bool dead(Time now) const { return now >= deadline(); }
  // Leased: until when to believe.
  std::optional<Time> lease_end() const {
    return leased_ ? std::optional(deadline()) : std::nullopt;
  }
  // The next time at which beat_due() or dead() changes.
  Time next_change() const { return next_beat_ < deadline() ? next_beat_ : deadline(); }
  struct Sample {
    Time round_trip{-1};  // negative: none yet
    Time ahead{0};
  };
  const Sample& clock() const { return best_; }

  static Time interval(Time dead_after) { return dead_after / 5; }

 private:
  Time deadline() const {
    return leased_ ? lease_from_ + dead_after_ * 4 / 5 : heard_ + dead_after_;
  }

  bool leased_;
  Time dead_after_;
  Time interval_;
  Time heard_;
  Time lease_from_;
  Time next_beat_;
  std::array<Sample, 16> samples_ = {};
  size_t sampled_ = 0;
  Sample best_;
};

}  // namespace mtl
