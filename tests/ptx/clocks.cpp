#include "ptx/clocks.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <utility>

namespace mtl::ptx {

namespace {

uint32_t at(const Times& times, size_t dimension) {
  return dimension < times.size() ? times[dimension] : 0;
}
void raise(Times& times, size_t dimension, uint32_t time) {
  if (time == 0) return;
  if (dimension >= times.size()) times.resize(dimension + 1);
  times[dimension] = std::max(times[dimension], time);
}
void join(Times& to, const Times& from) {
  if (to.size() < from.size()) to.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) to[i] = std::max(to[i], from[i]);
}
Known joined(const Known& a, const Known& b) {
  if (a == b) return a;
  Times both = *a;
  join(both, *b);
  return std::make_shared<const Times>(std::move(both));
}
Elsewhere joined(const Elsewhere& a, const Elsewhere& b) {
  if (a == b || b == nullptr) return a;
  if (a == nullptr) return b;
  auto both = *a;
  for (const auto& [block, known] : *b) {
    Known& mine = both[block];
    mine = mine == nullptr ? known : joined(mine, known);
  }
  return std::make_shared<const std::map<uint64_t, Known>>(std::move(both));
}

template <typename Body>
void for_lanes(Mask lanes, Body body) {
  for (; lanes != 0; lanes &= lanes - 1) body(static_cast<unsigned>(std::countr_zero(lanes)));
}

// Of the copies that complete on a phase.
uint32_t time_of(uint64_t phase) {
  return static_cast<uint32_t>(phase + 1);
}

// Meetings are few at a time: who waits at one is never far behind.
constexpr size_t kMeetingsKept = 16;

}  // namespace

Clocks::Clocks(uint64_t block, unsigned warps) : block_(block), warps_(warps) {
  const auto nothing = std::make_shared<const Times>();
  for (WarpClocks& warp : warps_) {
    for (Lane& lane : warp.lanes) lane.c = lane.p = nothing;
  }
}

Event Clocks::of_lanes(unsigned warp, Mask lanes) const {
  return {block_, warps_[warp].time, lanes, Actor::lane, static_cast<uint8_t>(warp), 0};
}
Event Clocks::of_copy(unsigned warp, unsigned lane) const {
  return {block_,
          warps_[warp].lanes[lane].copies_begun + 1,
          Mask{1} << lane,
          Actor::copy,
          static_cast<uint8_t>(warp),
          0};
}
Event Clocks::of_product(unsigned warp) const {
  return {block_,         warps_[warp].products_begun + 1, ~Mask{0},
          Actor::product, static_cast<uint8_t>(warp),      0};
}
Event Clocks::of_bulk(unsigned warp, unsigned lane, unsigned barrier, uint64_t phase) const {
  return {block_,
          time_of(phase),
          Mask{1} << lane,
          Actor::bulk,
          static_cast<uint8_t>(warp),
          static_cast<uint8_t>(barrier)};
}

bool Clocks::sees(unsigned warp, Mask lanes, const Event& event, Actor through) {
  WarpClocks& own = warps_[warp];
  if (through == Actor::product) {
    if (own.changed) {
      own.all = {};
      gather(warp, ~Mask{0}, own.all);
      own.changed = false;
    }
    return lane_sees(warp, 0, event, through);
  }
  const bool is_own = event.block == block_ && event.warp == warp;
  const Lane* before = nullptr;
  for (; lanes != 0; lanes &= lanes - 1) {
    const auto i = static_cast<unsigned>(std::countr_zero(lanes));
    const Lane& lane = own.lanes[i];
    // Of others' doings lanes mostly know the same.
    if (before != nullptr && !is_own && lane.c == before->c && lane.p == before->p &&
        lane.elsewhere == before->elsewhere) {
      continue;
    }
    if (!lane_sees(warp, i, event, through)) return false;
    before = &lane;
  }
  return true;
}

bool Clocks::lane_sees(unsigned warp, unsigned lane, const Event& event, Actor through) const {
  const WarpClocks& own = warps_[warp];
  const bool collective = through == Actor::product;
  const Lane& me = own.lanes[lane];
  const bool is_mine = event.block == block_ && event.warp == warp && !collective;
  if (event.block != block_) {
    const Elsewhere& elsewhere = collective ? own.all.elsewhere : me.elsewhere;
    if (elsewhere == nullptr) return false;
    const auto other = elsewhere->find(event.block);
    if (other == elsewhere->end()) return false;
    for (Mask lanes = event.lanes; lanes != 0; lanes &= lanes - 1) {
      const auto i = static_cast<unsigned>(std::countr_zero(lanes));
      if (at(*other->second, lane_of(event.warp, i)) < event.time) return false;
    }
    return true;
  }
  const bool over = is_asynchronous(through) && !is_asynchronous(event.actor);
  const Times& known = over ? (collective ? own.all.p : *me.p) : (collective ? own.all.c : *me.c);
  switch (event.actor) {
    case Actor::product:
      if (is_mine) return own.products_done >= event.time;
      return at(known, product_of(event.warp)) >= event.time;
    case Actor::bulk:
      return at(known, bulk_of(event.barrier)) >= event.time;
    case Actor::lane:
    case Actor::copy:
      break;
  }
  const bool is_copy = event.actor == Actor::copy;
  for (Mask lanes = event.lanes; lanes != 0; lanes &= lanes - 1) {
    const auto i = static_cast<unsigned>(std::countr_zero(lanes));
    if (is_mine && i == lane) {
      if (is_copy && (over ? me.copies_fenced : me.copies_done) < event.time) return false;
      if (!is_copy && over && me.fenced < event.time) return false;
    } else if (at(known, is_copy ? copy_of(event.warp, i) : lane_of(event.warp, i)) < event.time) {
      return false;
    }
  }
  return true;
}

void Clocks::gather(unsigned warp, Mask lanes, Clock& to) const {
  const WarpClocks& from = warps_[warp];
  const Times *c = nullptr, *p = nullptr;  // of the lane before
  for_lanes(lanes, [&](unsigned i) {
    const Lane& lane = from.lanes[i];
    if (lane.c.get() != c) join(to.c, *(c = lane.c.get()));
    if (lane.p.get() != p) join(to.p, *(p = lane.p.get()));
    to.elsewhere = joined(to.elsewhere, lane.elsewhere);
  });
  for_lanes(lanes, [&](unsigned i) {
    const Lane& lane = from.lanes[i];
    raise(to.c, lane_of(warp, i), from.time);
    raise(to.p, lane_of(warp, i), lane.fenced);
    raise(to.c, copy_of(warp, i), lane.copies_done);
    raise(to.p, copy_of(warp, i), lane.copies_fenced);
  });
  raise(to.c, product_of(warp), from.products_done);
}

void Clocks::told(WarpClocks& warp) {
  ++warp.time;
  warp.changed = true;
}

void Clocks::adopt(WarpClocks& warp, Mask lanes, const Meeting& from) {
  for_lanes(lanes, [&](unsigned i) {
    warp.lanes[i].c = from.c;
    warp.lanes[i].p = from.p;
    warp.lanes[i].elsewhere = from.clock.elsewhere;
  });
  warp.changed = true;
}

void Clocks::warp_barrier(unsigned warp, Mask lanes) {
  Meeting meeting;
  gather(warp, lanes, meeting.clock);
  meeting.c = std::make_shared<const Times>(std::move(meeting.clock.c));
  meeting.p = std::make_shared<const Times>(std::move(meeting.clock.p));
  adopt(warps_[warp], lanes, meeting);
  told(warps_[warp]);
}

void Clocks::fence(unsigned warp, Mask lanes) {
  WarpClocks& own = warps_[warp];
  for_lanes(lanes, [&](unsigned i) {
    Lane& lane = own.lanes[i];
    lane.p = lane.c;
    lane.fenced = own.time;
    lane.copies_fenced = lane.copies_done;
  });
  told(own);
}

void Clocks::reach(unsigned warp, Mask lanes, int barrier, uint64_t generation) {
  auto& meetings = barriers_[barrier];
  if (meetings.empty() || meetings.back().generation != generation) {
    if (meetings.size() == kMeetingsKept) meetings.erase(meetings.begin());
    meetings.emplace_back().generation = generation;
  }
  gather(warp, lanes, meetings.back().clock);
  told(warps_[warp]);
}

void Clocks::pass(unsigned warp, Mask lanes, int barrier, uint64_t generation) {
  for (Meeting& meeting : barriers_[barrier]) {
    if (meeting.generation != generation) continue;
    if (meeting.c == nullptr) {
      meeting.c = std::make_shared<const Times>(std::move(meeting.clock.c));
      meeting.p = std::make_shared<const Times>(std::move(meeting.clock.p));
    }
    adopt(warps_[warp], lanes, meeting);
  }
}

unsigned Clocks::make_mbarrier(uint32_t address) {
  const auto known = std::find(mbarriers_.begin(), mbarriers_.end(), address);
  const auto number = static_cast<unsigned>(known - mbarriers_.begin());
  if (known != mbarriers_.end()) return number;
  if (number == kMostBarriers) {
    throw std::runtime_error("more mbarriers in a block than are watched (64)");
  }
  mbarriers_.push_back(address);
  phases_.emplace_back();
  return number;
}

void Clocks::reach_mbarrier(unsigned warp, Mask lanes, unsigned barrier, uint64_t phase) {
  auto& phases = phases_[barrier];
  if (phases.empty() || phases.back().generation != phase) {
    // An arrival changes the same word as those of the phases before: who sees it sees them.
    if (phases.size() == kMeetingsKept) phases.erase(phases.begin());
    Meeting next;
    if (!phases.empty()) next.clock = phases.back().clock;
    next.generation = phase;
    phases.push_back(std::move(next));
  }
  gather(warp, lanes, phases.back().clock);
  told(warps_[warp]);
}

void Clocks::pass_mbarrier(unsigned warp, Mask lanes, unsigned barrier, uint64_t phase) {
  WarpClocks& own = warps_[warp];
  const Meeting* meeting = nullptr;
  for (const Meeting& each : phases_[barrier]) {
    if (each.generation == phase) meeting = &each;
  }
  if (meeting == nullptr) return;  // the phase before the first one
  Known c, p, c_before, p_before;  // of the lane before: mostly all have the same
  for_lanes(lanes, [&](unsigned i) {
    Lane& lane = own.lanes[i];
    if (lane.c != c_before) {
      Times times = *(c_before = lane.c);
      join(times, meeting->clock.c);
      raise(times, bulk_of(barrier), time_of(phase));
      c = std::make_shared<const Times>(std::move(times));
    }
    if (lane.p != p_before) {
      Times times = *(p_before = lane.p);
      join(times, meeting->clock.p);
      p = std::make_shared<const Times>(std::move(times));
    }
    lane.c = c;
    lane.p = p;
    lane.elsewhere = joined(lane.elsewhere, meeting->clock.elsewhere);
  });
  own.changed = true;
}

void Clocks::commit_copies(unsigned warp, Mask lanes) {
  for_lanes(lanes, [&](unsigned i) { ++warps_[warp].lanes[i].copies_begun; });
}
void Clocks::wait_for_copies(unsigned warp, Mask lanes, int pending) {
  for_lanes(lanes, [&](unsigned i) {
    Lane& lane = warps_[warp].lanes[i];
    const auto left = std::min(static_cast<uint32_t>(pending), lane.copies_begun);
    lane.copies_done = std::max(lane.copies_done, lane.copies_begun - left);
  });
  warps_[warp].changed = true;
}
void Clocks::commit_products(unsigned warp) {
  ++warps_[warp].products_begun;
}
void Clocks::wait_for_products(unsigned warp, int pending) {
  WarpClocks& own = warps_[warp];
  const auto left = std::min(static_cast<uint32_t>(pending), own.products_begun);
  own.products_done = std::max(own.products_done, own.products_begun - left);
  own.changed = true;
}

void Clocks::release(unsigned warp, Mask lanes, Elsewhere& to) {
  Clock clock;
  gather(warp, lanes, clock);
  std::map<uint64_t, Known> own;
  own[block_] = std::make_shared<const Times>(std::move(clock.c));
  to = joined(joined(to, clock.elsewhere),
              std::make_shared<const std::map<uint64_t, Known>>(std::move(own)));
  told(warps_[warp]);
}
void Clocks::acquire(unsigned warp, Mask lanes, const Elsewhere& from) {
  if (from == nullptr) return;
  const auto own = from->find(block_);
  for_lanes(lanes, [&](unsigned i) {
    Lane& lane = warps_[warp].lanes[i];
    lane.elsewhere = joined(lane.elsewhere, from);
    if (own != from->end()) lane.c = joined(lane.c, own->second);
  });
  warps_[warp].changed = true;
}

}  // namespace mtl::ptx
