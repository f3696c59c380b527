#include "rendezvous/pulse.h"

#include <algorithm>

namespace mtl {

Pulse::Pulse(bool leased, Time dead_after, Time now, double jitter)
    : leased_(leased),
      dead_after_(dead_after),
      interval_(interval(dead_after)),
      heard_(now),
      lease_from_(now),
      next_beat_(now + std::chrono::duration_cast<Time>(interval_ * (0.25 + 0.75 * jitter))) {}

void Pulse::saw_clock(Time round_trip, Time ahead) {
  samples_[sampled_++ % samples_.size()] = {round_trip, ahead};
  const auto end = samples_.begin() + static_cast<ptrdiff_t>(std::min(sampled_, samples_.size()));
  best_ = *std::min_element(samples_.begin(), end, [](const Sample& a, const Sample& b) {
    return a.round_trip < b.round_trip;
  });
}

void Pulse::answered(Time sent, Time peer_clock, Time now, Time clock) {
  // A peer may not extend our lease into the future.
  if (sent > now) return;
  lease_from_ = std::max(lease_from_, sent);
  saw_clock(now - sent, peer_clock - (clock - (now - sent) / 2));
}

void Pulse::answering(Time now) {
  if (!leased_) next_beat_ = std::max(next_beat_, now + interval_ * 3 / 2);
}

void Pulse::overslept(Time now) {
  heard_ = std::max(heard_, now - dead_after_ + interval_);
}

}  // namespace mtl
