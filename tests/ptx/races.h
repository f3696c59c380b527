// A watcher that holds every access to memory against those before it: two that overlap, one of
// them a write, need an order between them, and where the one is of the generic proxy and the
// other, later, of the async proxy (copy engine, products) a fence.proxy.async on the way; between
// blocks the copy engine needs one behind whatever another block has done (clocks.h). It goes
// by what orders them, not by when they have happened to come, so one run is enough, mostly.
//
// Order comes from the program of a lane; bar.warp.sync; bar.sync and bar.arrive; arrivals at an
// mbarrier for those that wait for the phase; waits for cp.async and bulk groups (for the lane's
// own copies), wgmma and bulk copies; between blocks, red/atom/st.release before ld/atom.acquire of
// the same address. A shuffle orders nothing. fence.acq_rel and membar are not known.
//
// Not looked at: lanes that write to the same place by one instruction; of many readers of a place
// in global memory, all but a few when it is written later.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ptx/watch.h"

namespace mtl::ptx {

struct RaceOptions {
  bool stop = true;        // the first finding ends the run: std::runtime_error
  bool global = true;      // global memory as well
  bool unwritten = false;  // reads of shared memory that nobody has written
};

struct Race {
  std::string text;
  uint64_t times = 0;
};

// Of one grid. Findings are told once for each pair of instructions.
class Races : public Watcher {
 public:
  explicit Races(const RaceOptions& options);
  ~Races() override;
  const std::vector<Race>& found() const;

  void ran(const Warp& warp, const Instruction& instruction, Mask lanes) override;
  void shared(const Warp& warp, const Instruction& instruction, Mask lanes,
              const uint32_t* addresses, unsigned bytes, Access access) override;
  void global(const Warp& warp, const Instruction& instruction, Mask lanes,
              const uint64_t* addresses, unsigned bytes, Access access) override;
  void copy(const Warp& warp, const Instruction& instruction, Mask lanes, const uint32_t* addresses,
            unsigned bytes) override;
  void copies_committed(const Warp& warp, Mask lanes) override;
  void copies_waited(const Warp& warp, Mask lanes, int pending) override;
  void bulk_copy(const Warp& warp, const Instruction& instruction, unsigned lane, uint32_t address,
                 size_t bytes, uint32_t barrier, uint64_t phase) override;
  void bulk_reads(const Warp& warp, const Instruction& instruction, unsigned lane, uint64_t address,
                  size_t bytes, uint32_t barrier, uint64_t phase) override;
  void bulk_store(const Warp& warp, const Instruction& instruction, unsigned lane, uint32_t from,
                  uint64_t to, size_t bytes, Access access) override;
  void stores_committed(const Warp& warp, Mask lanes) override;
  void stores_waited(const Warp& warp, Mask lanes, int pending, bool only_read) override;
  void product_reads(const Warp& warp, const Instruction& instruction, uint32_t address,
                     size_t bytes) override;
  void products_committed(const Warp& warp) override;
  void products_waited(const Warp& warp, int pending) override;
  void barrier_reached(const Warp& warp, int number, uint64_t generation) override;
  void barrier_passed(const Warp& warp, int number, uint64_t generation) override;
  void mbarrier_made(const Warp& warp, uint32_t address) override;
  void mbarrier_reached(const Warp& warp, uint32_t address, uint64_t phase) override;
  void mbarrier_passed(const Warp& warp, uint32_t address, uint64_t phase) override;
  void warp_synchronized(const Warp& warp, Mask lanes) override;
  void proxy_fence(const Warp& warp, Mask lanes, StateSpace space) override;
  void block_began(const Block& block) override;
  void block_ended(const Block& block) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mtl::ptx
