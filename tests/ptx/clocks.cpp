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
OfBlocks joined(const OfBlocks& a, const OfBlocks& b) {
  if (a == b || b == nullptr) return a;
  if (a == nullptr) return b;
  auto both = *a;
  for (const auto& [block, known] : *b) {
    Known& mine = both[block];
    mine = mine == nullptr ? known : joined(mine, known);
  }
  return std::make_shared<const std::map<uint64_t, Known>>(std::move(both));
}
Elsewhere joined(const Elsewhere& a, const Elsewhere& b) {
  return {joined(a.c, b.c), joined(a.g, b.g)};
}
OfBlocks only(uint64_t block, Times times) {
  std::map<uint64_t, Known> one;
  if (!times.empty()) one[block] = std::make_shared<const Times>(std::move(times));
  return one.empty() ? nullptr : std::make_shared<const std::map<uint64_t, Known>>(std::move(one));
}

// Of a lane, or of those before it: mostly they are the same.
class Joining {
 public:
  explicit Joining(const Times& more) : more_(more) {}
  // `dimension`: raised to `time`.
  const Known& with(const Known& known, size_t dimension = 0, uint32_t time = 0) {
    if (known != before_) {
      Times times = *(before_ = known);
      join(times, more_);
      raise(times, dimension, time);
      after_ = std::make_shared<const Times>(std::move(times));
    }
    return after_;
  }

 private:
  const Times& more_;
  Known before_, after_;
};

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
    for (Lane& lane : warp.lanes) lane.c = lane.p = lane.g = nothing;
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
          static_cast<uint16_t>(barrier)};
}
Event Clocks::of_store(unsigned warp, unsigned lane, Actor part) {
  const Stores& stores = stores_of(warp, lane);
  return {
      block_, stores.begun + 1,           Mask{1} << lane,
      part,   static_cast<uint8_t>(warp), static_cast<uint16_t>(warps_[warp].lanes[lane].stores)};
}
Clocks::Stores& Clocks::stores_of(unsigned warp, unsigned lane) {
  int& number = warps_[warp].lanes[lane].stores;
  if (number < 0) {
    number = static_cast<int>(stores_.size());
    stores_.emplace_back();
  }
  return stores_[static_cast<size_t>(number)];
}

bool Clocks::sees(unsigned warp, Mask lanes, const Event& event, Actor through, StateSpace space) {
  WarpClocks& own = warps_[warp];
  if (through == Actor::product) {
    if (own.changed) {
      own.all = {};
      gather(warp, ~Mask{0}, own.all);
      own.changed = false;
    }
    return lane_sees(warp, 0, event, through, space);
  }
  const bool is_own = event.block == block_ && event.warp == warp;
  const Lane* before = nullptr;
  for (; lanes != 0; lanes &= lanes - 1) {
    const auto i = static_cast<unsigned>(std::countr_zero(lanes));
    const Lane& lane = own.lanes[i];
    // Of others' doings lanes mostly know the same.
    if (before != nullptr && !is_own && lane.c == before->c && lane.p == before->p &&
        lane.g == before->g && lane.elsewhere.c == before->elsewhere.c &&
        lane.elsewhere.g == before->elsewhere.g) {
      continue;
    }
    if (!lane_sees(warp, i, event, through, space)) return false;
    before = &lane;
  }
  return true;
}

bool Clocks::has(const Times& known, const Event& event, Mask lanes) const {
  switch (event.actor) {
    case Actor::product:
      return at(known, product_of(event.warp)) >= event.time;
    case Actor::bulk:
      return at(known, bulk_of(event.number)) >= event.time;
    case Actor::source:
      return at(known, source_of(event.number)) >= event.time;
    case Actor::target:
      return at(known, target_of(event.number)) >= event.time;
    case Actor::lane:
    case Actor::copy:
      break;
  }
  for (; lanes != 0; lanes &= lanes - 1) {
    const auto i = static_cast<unsigned>(std::countr_zero(lanes));
    const bool is_copy = event.actor == Actor::copy;
    const size_t dimension = is_copy ? copy_of(event.warp, i) : lane_of(event.warp, i);
    if (at(known, dimension) < event.time) return false;
  }
  return true;
}

bool Clocks::lane_sees(unsigned warp, unsigned lane, const Event& event, Actor through,
                       StateSpace space) const {
  const WarpClocks& own = warps_[warp];
  const bool collective = through == Actor::product;
  const Lane& me = own.lanes[lane];
  if (event.block != block_) {
    const Elsewhere& elsewhere = collective ? own.all.elsewhere : me.elsewhere;
    const OfBlocks& blocks = is_asynchronous(through) ? elsewhere.g : elsewhere.c;
    if (blocks == nullptr) return false;
    const auto other = blocks->find(event.block);
    return other != blocks->end() && has(*other->second, event, event.lanes);
  }
  const bool over = is_asynchronous(through) && !is_asynchronous(event.actor);
  const bool over_global = over && space == StateSpace::global;
  const Times& known = over_global ? (collective ? own.all.g : *me.g)
                       : over      ? (collective ? own.all.p : *me.p)
                                   : (collective ? own.all.c : *me.c);
  const bool is_mine = event.warp == warp && !collective;
  if (!is_mine) return has(known, event, event.lanes);
  if (event.actor == Actor::product) return own.products_done >= event.time;
  const Mask mine = event.lanes & Mask{1} << lane;
  if (mine != 0) {
    switch (event.actor) {
      case Actor::lane:
        if (over && (over_global ? me.fenced_global : me.fenced) < event.time) return false;
        break;
      case Actor::copy:
        if ((over ? me.copies_fenced : me.copies_done) < event.time) return false;
        break;
      case Actor::source:
        return stores_[event.number].read >= event.time;
      case Actor::target:
        return stores_[event.number].written >= event.time;
      case Actor::bulk:
      case Actor::product:
        break;
    }
  }
  return has(known, event, event.lanes & ~mine);
}

void Clocks::gather(unsigned warp, Mask lanes, Clock& to) const {
  const WarpClocks& from = warps_[warp];
  const Times *c = nullptr, *p = nullptr, *g = nullptr;  // of the lane before
  for_lanes(lanes, [&](unsigned i) {
    const Lane& lane = from.lanes[i];
    if (lane.c.get() != c) join(to.c, *(c = lane.c.get()));
    if (lane.p.get() != p) join(to.p, *(p = lane.p.get()));
    if (lane.g.get() != g) join(to.g, *(g = lane.g.get()));
    to.elsewhere = joined(to.elsewhere, lane.elsewhere);
  });
  for_lanes(lanes, [&](unsigned i) {
    const Lane& lane = from.lanes[i];
    raise(to.c, lane_of(warp, i), from.time);
    raise(to.p, lane_of(warp, i), lane.fenced);
    raise(to.c, copy_of(warp, i), lane.copies_done);
    raise(to.p, copy_of(warp, i), lane.copies_fenced);
    raise(to.g, lane_of(warp, i), lane.fenced_global);
    if (lane.stores < 0) return;
    const auto number = static_cast<unsigned>(lane.stores);
    const Stores& stores = stores_[number];
    raise(to.c, source_of(number), stores.read);
    raise(to.c, target_of(number), stores.written);
    raise(to.g, target_of(number), stores.fenced);
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
    warp.lanes[i].g = from.g;
    warp.lanes[i].elsewhere = from.clock.elsewhere;
  });
  warp.changed = true;
}

void Clocks::Meeting::settle() {
  if (c != nullptr) return;
  c = std::make_shared<const Times>(std::move(clock.c));
  p = std::make_shared<const Times>(std::move(clock.p));
  g = std::make_shared<const Times>(std::move(clock.g));
}

void Clocks::warp_barrier(unsigned warp, Mask lanes) {
  Meeting meeting;
  gather(warp, lanes, meeting.clock);
  meeting.settle();
  adopt(warps_[warp], lanes, meeting);
  told(warps_[warp]);
}

void Clocks::fence(unsigned warp, Mask lanes, StateSpace space) {
  WarpClocks& own = warps_[warp];
  for_lanes(lanes, [&](unsigned i) {
    Lane& lane = own.lanes[i];
    if (space == StateSpace::shared) {
      lane.p = lane.c;
      lane.fenced = own.time;
      lane.copies_fenced = lane.copies_done;
      return;
    }
    lane.g = lane.c;
    lane.elsewhere.g = lane.elsewhere.c;
    lane.fenced_global = own.time;
    if (lane.stores < 0) return;
    Stores& stores = stores_[static_cast<size_t>(lane.stores)];
    stores.fenced = stores.written;
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
    meeting.settle();
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
  Joining c(meeting->clock.c), p(meeting->clock.p), g(meeting->clock.g);
  for_lanes(lanes, [&](unsigned i) {
    Lane& lane = own.lanes[i];
    lane.c = c.with(lane.c, bulk_of(barrier), time_of(phase));
    lane.p = p.with(lane.p);
    lane.g = g.with(lane.g);
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

void Clocks::commit_stores(unsigned warp, Mask lanes) {
  // Empty groups before the first copy are none that anybody waits for.
  for_lanes(lanes, [&](unsigned i) {
    if (warps_[warp].lanes[i].stores >= 0) ++stores_of(warp, i).begun;
  });
}
void Clocks::wait_for_stores(unsigned warp, Mask lanes, int pending, bool only_read) {
  for_lanes(lanes, [&](unsigned i) {
    if (warps_[warp].lanes[i].stores < 0) return;
    Stores& stores = stores_of(warp, i);
    const uint32_t done = stores.begun - std::min(static_cast<uint32_t>(pending), stores.begun);
    stores.read = std::max(stores.read, done);
    if (!only_read) stores.written = std::max(stores.written, done);
  });
  warps_[warp].changed = true;
}

void Clocks::release(unsigned warp, Mask lanes, Elsewhere& to) {
  Clock clock;
  gather(warp, lanes, clock);
  to = joined(joined(to, clock.elsewhere),
              {only(block_, std::move(clock.c)), only(block_, std::move(clock.g))});
  told(warps_[warp]);
}
void Clocks::acquire(unsigned warp, Mask lanes, const Elsewhere& from) {
  if (from.c == nullptr) return;
  const auto of_own = [&](const OfBlocks& blocks, const Known& before) {
    if (blocks == nullptr) return before;
    const auto own = blocks->find(block_);
    return own == blocks->end() ? before : joined(before, own->second);
  };
  for_lanes(lanes, [&](unsigned i) {
    Lane& lane = warps_[warp].lanes[i];
    lane.elsewhere = joined(lane.elsewhere, from);
    lane.c = of_own(from.c, lane.c);
    lane.g = of_own(from.g, lane.g);
  });
  warps_[warp].changed = true;
}

}  // namespace mtl::ptx
