// What the groups of one rank share: the world's control memory (who is alive, has anybody failed,
// who announces which memory), the arenas, and the one way to wait for other ranks. Several threads
// of a rank may wait, fail and look up memory at once; announcing and adding memory is for one
// thread at a time, meanwhile.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "runtime/comm/shm/futex.h"
#include "runtime/comm/shm/host.h"
#include "runtime/comm/shm/memory.h"

namespace mtl::shm {

// In the control memory, which starts zeroed. One writer per field unless it is atomic.
struct Member {
  std::atomic<uint32_t> departed;  // its world has been destroyed, or it has failed
  // Memory that this rank announces at the moment: `key` says for what, 0 = for nothing.
  Signal announced;
  std::atomic<uint64_t> key;
  MemoryName memory;
};
// The first failure of any rank; it ends the world for all.
struct Failure {
  enum State : uint32_t { none, being_written, complete };
  std::atomic<uint32_t> state;
  int32_t rank;
  int32_t exit;
  char code[64];
  char what[1024];
  char help[512];
};

// Where a tensor lies in the arenas: the number of the allocation and the offset in it.
struct Residence {
  int32_t region = -1;
  uint64_t offset = 0;
};

class WorldState {
 public:
  // `control` holds one Failure and `size` Members at its start. `job_ranks`: what people call the
  // ranks; empty = 0, 1, 2...
  WorldState(int rank, std::vector<Identity> identities, std::chrono::milliseconds timeout,
             SharedMemory control, std::vector<int> job_ranks = {});
  ~WorldState();
  WorldState(const WorldState&) = delete;
  WorldState& operator=(const WorldState&) = delete;

  static size_t control_bytes(int size);

  int rank() const { return rank_; }
  int size() const { return size_; }
  int job_rank(int rank) const {
    return job_ranks_.empty() ? rank : job_ranks_[static_cast<size_t>(rank)];
  }
  Member& member(int rank) const;
  // Peers can open the control memory until this is called.
  void close_control_file() { control_.close_file(); }

  // Waits until ready(), sleeping on `signal`, which changes before ready() can become true.
  // `missing` gives the ranks that have not come, `doing` says what we do, for the errors:
  // "comm.timeout", "comm.peer_lost", or the failure of another rank.
  void wait(Signal& signal, const std::function<bool()>& ready,
            const std::function<std::vector<int>()>& missing,
            const std::function<std::string()>& doing);

  // We come to nothing any more: waits of our other threads throw, peers that wait for us learn it.
  void leave() { member(rank_).departed.store(1, std::memory_order_release); }

  // Throws what ended the world, if something did, for all or (leave()) for us.
  void check_failure() const;
  // Records the error as the world's end unless there is one already, and throws it. Sleepers on
  // `signal` learn of it at once, all others within the interval at which sleepers look around.
  [[noreturn]] void fail(const Error& error, Signal* signal);
  // The first half of it, for an end that comes from elsewhere.
  void record(const Error& error);

  void announce(uint64_t key, const MemoryName& memory);
  // Waits for `rank` to announce `key`.
  MemoryName announcement(int rank, uint64_t key, const std::function<std::string()>& doing);

  // One arena allocation as seen by this rank: its own and the peers' mappings, by rank.
  void add_region(std::vector<SharedMemory> mappings);
  int regions() const;
  std::optional<Residence> find(const void* data, int64_t bytes) const;
  char* address(Residence residence, int rank) const;

 private:
  Failure& failure() const;
  // Why `rank` cannot come any more; nothing if it can.
  std::optional<std::string> why_lost(int rank) const;

  const int rank_;
  const int size_;
  const std::vector<Identity> identities_;  // by rank
  const std::chrono::milliseconds timeout_;
  const std::vector<int> job_ranks_;
  SharedMemory control_;
  bool spins_ = false;
  mutable std::shared_mutex regions_mutex_;
  std::vector<std::vector<SharedMemory>> regions_;
};

}  // namespace mtl::shm
