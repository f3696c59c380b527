// What each lane of a block knows to have happened, for races.h: vector clocks. A dimension each
// has every lane (its time goes on when it tells others what it has done), every lane's cp.async
// (time: the group), every warp's wgmma (the group), every mbarrier (the phase, for what the copy
// engine brings in it) and every lane's bulk groups (the group): once for what they read of shared
// memory and once for what they write to global memory.
//
// Beside what a lane knows (C) stands what it knows the async proxy to see of shared memory (P) and
// of global memory (G): a fence.proxy.async sets them to C, and all travel over barriers. The
// manual on it, PTX ISA 9.0: 8.9.5 "Causality Order": what precedes in base causality order does so
// in the proxy-preserved one if both are of the generic proxy, or of the same proxy and by the same
// thread block. 9.7.9.25.2 "Async Proxy": between the proxies fence.proxy.async is needed; an
// asynchronous copy's completion is followed by one, towards the generic proxy. So an access of the
// copy engine or of a product asks C for earlier ones of its own proxy by its own block, and P or G
// for those of the generic proxy and, as those are complete in the generic proxy only, for any of
// other blocks; where on the way the fence stands is not asked. Generic accesses ask C for all.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "ptx/module.h"
#include "ptx/watch.h"

namespace mtl::ptx {

using Times = std::vector<uint32_t>;  // by dimension; those beyond the end are 0
using Known = std::shared_ptr<const Times>;
// By block: what is known of others, for global memory. May be null.
using OfBlocks = std::shared_ptr<const std::map<uint64_t, Known>>;
struct Elsewhere {
  OfBlocks c, g;
};

enum class Actor : uint8_t {
  lane,     // generic proxy, at once
  copy,     // cp.async: generic proxy
  bulk,     // the copy engine towards shared memory, and there what it reads: async proxy
  source,   // the copy engine of a bulk group, as it reads shared memory: async proxy
  target,   // and as it writes global memory
  product,  // wgmma: async proxy
};
inline bool is_asynchronous(Actor actor) {
  return actor != Actor::lane && actor != Actor::copy;
}

// When something was done, and by whom.
struct Event {
  uint64_t block = 0;
  uint32_t time = 0;
  Mask lanes = 0;
  Actor actor = Actor::lane;
  uint8_t warp = 0;
  uint16_t number = 0;  // of the mbarrier, or of the bulk groups
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
  // Of the bulk group that is not committed yet. `part`: source or target.
  Event of_store(unsigned warp, unsigned lane, Actor part);

  // Whether an access by each of these lanes (a product: by all of the warp's) comes behind the
  // event. `through`: the access's actor.
  bool sees(unsigned warp, Mask lanes, const Event& event, Actor through, StateSpace space);

  void warp_barrier(unsigned warp, Mask lanes);
  void fence(unsigned warp, Mask lanes, StateSpace space);
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
  void commit_stores(unsigned warp, Mask lanes);
  // `only_read`: they may have still to write.
  void wait_for_stores(unsigned warp, Mask lanes, int pending, bool only_read);

  // Between blocks: what is told at an address of global memory.
  void release(unsigned warp, Mask lanes, Elsewhere& to);
  void acquire(unsigned warp, Mask lanes, const Elsewhere& from);

 private:
  struct Lane {
    Known c, p, g;
    Elsewhere elsewhere;
    uint32_t fenced = 0, fenced_global = 0;  // its own time at the last fence
    uint32_t copies_begun = 0, copies_done = 0, copies_fenced = 0;  // groups
    int stores = -1;                                                // number of its bulk groups
  };
  struct Stores {
    uint32_t begun = 0, read = 0, written = 0, fenced = 0;  // groups
  };
  struct Clock {
    Times c, p, g;
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
    Known c, p, g;  // the same, once somebody has passed
    void settle();
  };
  size_t lane_of(unsigned warp, unsigned lane) const { return size_t{warp} * kLanes + lane; }
  size_t product_of(unsigned warp) const { return warps_.size() * kLanes + warp; }
  size_t bulk_of(unsigned barrier) const { return warps_.size() * (kLanes + 1) + barrier; }
  size_t source_of(unsigned stores) const { return bulk_of(kMostBarriers) + size_t{2} * stores; }
  size_t target_of(unsigned stores) const { return source_of(stores) + 1; }
  size_t copy_of(unsigned warp, unsigned lane) const {
    return source_of(static_cast<unsigned>(warps_.size()) * kLanes) + lane_of(warp, lane);
  }
  bool lane_sees(unsigned warp, unsigned lane, const Event& event, Actor through,
                 StateSpace space) const;
  // Whether `known`, of the event's block, has it; but for a lane's own.
  bool has(const Times& known, const Event& event, Mask lanes) const;
  Stores& stores_of(unsigned warp, unsigned lane);
  void gather(unsigned warp, Mask lanes, Clock& to) const;
  // What these lanes have told at `from` and what they know from now on.
  static void adopt(WarpClocks& warp, Mask lanes, const Meeting& from);
  static void told(WarpClocks& warp);

  uint64_t block_;
  std::vector<WarpClocks> warps_;
  std::vector<Stores> stores_;  // of lanes that have bulk groups
  std::map<int, std::vector<Meeting>> barriers_;
  std::vector<uint32_t> mbarriers_;           // addresses
  std::vector<std::vector<Meeting>> phases_;  // of each the last few, with those before them
};

}  // namespace mtl::ptx
