// What each lane of a block knows to have happened, for races.h: vector clocks. A dimension each
// has every lane (its time goes on when it tells others what it has done), every lane's cp.async
// (time: the group), every warp's wgmma (the group) and every mbarrier (the phase, for what the
// copy engine brings in it).
//
// Beside what a lane knows (C) stands what it knows the async proxy to see (P): a fence.proxy.async
// sets P to C, and both travel over barriers ("Causality order", proxy-preserved base causality
// order). An access of the copy engine or of a product asks C for earlier ones of its own proxy
// and P for those of the generic one. The other way no fence is asked for: that an asynchronous
// access is complete is known only by a wait, which is one.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "ptx/module.h"

namespace mtl::ptx {

using Times = std::vector<uint32_t>;  // by dimension; those beyond the end are 0
using Known = std::shared_ptr<const Times>;
// By block: what is known of the lanes of others, for global memory. May be null.
using Elsewhere = std::shared_ptr<const std::map<uint64_t, Known>>;

enum class Actor : uint8_t {
  lane,     // generic proxy, at once
  copy,     // cp.async: generic proxy
  bulk,     // the copy engine: async proxy
  product,  // wgmma: async proxy
};
inline bool is_asynchronous(Actor actor) {
  return actor == Actor::bulk || actor == Actor::product;
}

// When something was done, and by whom.
struct Event {
  uint64_t block = 0;
  uint32_t time = 0;
  Mask lanes = 0;
  Actor actor = Actor::lane;
  uint8_t warp = 0, barrier = 0;
};

class Clocks {
 public:
  // Throws std::runtime_error beyond this.
  static constexpr unsigned kMostBarriers = 64;

  Clocks(uint64_t block, unsigned warps);

  Event of_lanes(unsigned warp, Mask lanes) const;
  Event of_copy(unsigned warp, unsigned lane) const;  // of the group that is not committed yet
  Event of_product(unsigned warp) const;
  Event of_bulk(unsigned warp, unsigned lane, unsigned barrier, uint64_t phase) const;

  // Whether an access by each of these lanes (a product: by all of the warp's) comes behind the
  // event. `through`: the access's actor.
  bool sees(unsigned warp, Mask lanes, const Event& event, Actor through);

  void warp_barrier(unsigned warp, Mask lanes);
  void fence(unsigned warp, Mask lanes);
  void reach(unsigned warp, Mask lanes, int barrier, uint64_t generation);
  void pass(unsigned warp, Mask lanes, int barrier, uint64_t generation);

  // Returns the number by which the others know it.
  unsigned make_mbarrier(uint32_t address);
  void reach_mbarrier(unsigned warp, Mask lanes, unsigned barrier, uint64_t phase);
  void pass_mbarrier(unsigned warp, Mask lanes, unsigned barrier, uint64_t phase);

  void commit_copies(unsigned warp, Mask lanes);
  void wait_for_copies(unsigned warp, Mask lanes, int pending);
  void commit_products(unsigned warp);
  void wait_for_products(unsigned warp, int pending);

  // Between blocks: what is told at an address of global memory.
  void release(unsigned warp, Mask lanes, Elsewhere& to);
  void acquire(unsigned warp, Mask lanes, const Elsewhere& from);

 private:
  struct Lane {
    Known c, p;
    Elsewhere elsewhere;
    uint32_t fenced = 0;  // its own time at the last fence
    uint32_t copies_begun = 0, copies_done = 0, copies_fenced = 0;  // groups
  };
  struct Clock {
    Times c, p;
    Elsewhere elsewhere;
  };
  struct WarpClocks {
    std::array<Lane, kLanes> lanes;
    uint32_t time = 1;
    uint32_t products_begun = 0, products_done = 0;  // groups
    bool changed = true;                             // since `all` was made
    Clock all;                                       // of its lanes together
  };
  struct Meeting {
    uint64_t generation = 0;
    Clock clock;
    Known c, p;  // the same, once somebody has passed
  };
  size_t lane_of(unsigned warp, unsigned lane) const { return size_t{warp} * kLanes + lane; }
  size_t product_of(unsigned warp) const { return warps_.size() * kLanes + warp; }
  size_t bulk_of(unsigned barrier) const { return warps_.size() * (kLanes + 1) + barrier; }
  size_t copy_of(unsigned warp, unsigned lane) const {
    return bulk_of(kMostBarriers) + lane_of(warp, lane);
  }
  bool lane_sees(unsigned warp, unsigned lane, const Event& event, Actor through) const;
  void gather(unsigned warp, Mask lanes, Clock& to) const;
  // What these lanes have told at `from` and what they know from now on.
  static void adopt(WarpClocks& warp, Mask lanes, const Meeting& from);
  static void told(WarpClocks& warp);

  uint64_t block_;
  std::vector<WarpClocks> warps_;
  std::map<int, std::vector<Meeting>> barriers_;
  std::vector<uint32_t> mbarriers_;           // addresses
  std::vector<std::vector<Meeting>> phases_;  // of each the last few, with those before them
};

}  // namespace mtl::ptx
