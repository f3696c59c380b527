// What may look on while a block runs: races.h (is everything ordered that has to be?) and counts.h
// (how much is asked of the memories?). Handlers call these through Block::watch().
#pragma once

#include <cstddef>
#include <cstdint>

#include "ptx/module.h"

namespace mtl::ptx {

class Block;

enum class Access : uint8_t { read, write, atomic };
enum class StateSpace : uint8_t { shared, global };

class Watcher {
 public:
  virtual ~Watcher() = default;

  // An instruction was run by these lanes; what it has accessed was told before.
  virtual void ran(const Warp&, const Instruction&, Mask) {}

  // --- generic proxy: addresses[lane] of the active lanes, `bytes` from each on

  virtual void shared(const Warp&, const Instruction&, Mask, const uint32_t* /*addresses*/,
                      unsigned /*bytes*/, Access) {}
  virtual void global(const Warp&, const Instruction&, Mask, const uint64_t* /*addresses*/,
                      unsigned /*bytes*/, Access) {}

  // --- asynchronous accesses, told when they are issued

  // cp.async of the lanes, of the group that the next commit ends.
  virtual void copy(const Warp&, const Instruction&, Mask, const uint32_t* /*addresses*/,
                    unsigned /*bytes*/) {}
  virtual void copies_committed(const Warp&, Mask) {}
  // At most `pending` groups are not done any more.
  virtual void copies_waited(const Warp&, Mask, int /*pending*/) {}
  // cp.async.bulk by one lane: writes [address, + bytes), completes on a phase of a barrier.
  virtual void bulk_copy(const Warp&, const Instruction&, unsigned /*lane*/, uint32_t /*address*/,
                         size_t /*bytes*/, uint32_t /*barrier*/, uint64_t /*phase*/) {}
  // What it reads of global memory, told behind that: once for each row that lies together.
  virtual void bulk_reads(const Warp&, const Instruction&, unsigned /*lane*/, uint64_t /*address*/,
                          size_t /*bytes*/, uint32_t /*barrier*/, uint64_t /*phase*/) {}
  // The other way by one lane, of the bulk group that its next commit ends: reads [from, + bytes)
  // of shared memory, writes [to, + bytes) of global memory or adds to them.
  virtual void bulk_store(const Warp&, const Instruction&, unsigned /*lane*/, uint32_t /*from*/,
                          uint64_t /*to*/, size_t /*bytes*/, Access) {}
  virtual void stores_committed(const Warp&, Mask) {}
  // At most `pending` groups have still to write; if `only_read`, to read.
  virtual void stores_waited(const Warp&, Mask, int /*pending*/, bool /*only_read*/) {}
  // wgmma: one warp's share of a product reads [address, + bytes) (once for each row of 16 bytes or
  // more that lies together), of the group that the next commit ends.
  virtual void product_reads(const Warp&, const Instruction&, uint32_t /*address*/,
                             size_t /*bytes*/) {}
  virtual void products_committed(const Warp&) {}
  virtual void products_waited(const Warp&, int /*pending*/) {}

  // --- what orders accesses

  // bar.sync and bar.arrive: a warp has come; and, of those that wait, goes on. `generation` counts
  // how often this barrier has been passed.
  virtual void barrier_reached(const Warp&, int /*number*/, uint64_t /*generation*/) {}
  virtual void barrier_passed(const Warp&, int /*number*/, uint64_t /*generation*/) {}
  virtual void mbarrier_made(const Warp&, uint32_t /*address*/) {}
  virtual void mbarrier_reached(const Warp&, uint32_t /*address*/, uint64_t /*phase*/) {}
  // A wait has found the phase complete.
  virtual void mbarrier_passed(const Warp&, uint32_t /*address*/, uint64_t /*phase*/) {}
  virtual void warp_synchronized(const Warp&, Mask) {}        // bar.warp.sync
  virtual void proxy_fence(const Warp&, Mask, StateSpace) {}  // fence.proxy.async; of both: two

  virtual void block_began(const Block&) {}
  virtual void block_ended(const Block&) {}
};

}  // namespace mtl::ptx
