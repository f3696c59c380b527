// The control memory of one group: a barrier at which the ranks also compare what they are about to
// do, slots for small tensors and for staging, channels for send and recv.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/operation.h"
#include "runtime/comm/shm/world_state.h"

namespace mtl::shm {

constexpr int64_t kSmallBytes = 4096;
constexpr int64_t kStagingBytes = 1 << 20;  // of one rank: two halves, or one whole

using comm::Op;

// What a rank is about to do, and where its tensor lies, which need not agree.
struct Descriptor {
  Op op = Op::none;
  DType dtype = DType::u8;
  Reduce reduce = Reduce::sum;
  int32_t root = 0;
  int64_t numel = 0;
  Residence residence = {};  // region -1: not in an arena

  comm::Operation operation() const { return {op, dtype, reduce, root, numel}; }
};

// 64 pieces of up to kPieceBytes under way from one rank to another. The sender takes the lowest
// free piece, so that memory is touched only as far as messages pile up.
constexpr int kPieces = 64;
constexpr int64_t kPieceBytes = 1 << 20;
struct Channel {
  struct Post {
    uint32_t piece;
    DType dtype;
    int64_t message_numel;
    int64_t bytes;  // in this piece
  };
  Signal posted;               // counts; set by the sender
  Signal taken;                // counts; set by the receiver
  std::atomic<uint64_t> used;  // one bit per piece
  std::array<Post, kPieces> posts;
};

class GroupControl {
 public:
  // `ranks`: of this world, ascending. `memory` starts zeroed; at least bytes(size, with_data).
  GroupControl(std::shared_ptr<WorldState> world, std::vector<int> ranks, SharedMemory memory);
  // Without data: barrier and descriptors only (the world's own group).
  static size_t bytes(int size, bool with_data);

  int size() const { return static_cast<int>(ranks_.size()); }
  int rank() const { return rank_; }  // in the group
  int world_rank(int rank) const { return ranks_[static_cast<size_t>(rank)]; }
  // Its rank in the job, for people.
  int job_rank(int rank) const { return world_->job_rank(world_rank(rank)); }
  WorldState& world() const { return *world_; }

  // Waits for all ranks and checks that they do the same; else throws Error "comm.mismatch". What a
  // rank wrote before, all may read afterwards.
  void begin(const Descriptor& what);
  // The same without comparing: between the phases of one operation.
  void barrier();
  // Of the operation that has begun.
  const Descriptor& descriptor(int rank) const;

  // Two generations: what is written before begin() number n may be read until begin() number n+1
  // returns, for a rank that writes again has come to number n+2.
  char* next_small_slot() const { return small_slot(rank_, number_ + 1); }
  const char* small_slot(int rank) const { return small_slot(rank, number_); }
  char* staging(int rank) const;

  Channel& channel(int from, int to) const;
  char* piece(int from, int to, uint32_t index) const;
  // Waits as WorldState::wait does, for one rank.
  void wait_for_peer(Signal& signal, const std::function<bool()>& ready, int peer,
                     const std::function<std::string()>& doing);
  // The memory can be opened by peers until this is called.
  void close_file() { memory_.close_file(); }
  [[noreturn]] void fail(const Error& error) { world_->fail(error, &header().epoch); }

 private:
  struct Header {
    alignas(128) std::atomic<uint32_t> count;  // of the ranks at the barrier
    Signal epoch;                              // of the barrier
  };
  struct alignas(128) RankArea {
    std::atomic<uint32_t> arrivals;  // at barriers, only to name those who are missing
    std::atomic<uint32_t> number;    // of the last operation, and which: only for messages
    std::atomic<Op> op;
    std::array<Descriptor, 2> descriptors;
  };

  Header& header() const { return *reinterpret_cast<Header*>(memory_.data()); }
  RankArea& area(int rank) const {
    return reinterpret_cast<RankArea*>(memory_.data() + sizeof(Header))[rank];
  }
  char* small_slot(int rank, uint64_t number) const;
  char* data() const;
  void compare();
  std::vector<int> job_ranks() const;
  std::vector<int> missing() const;
  std::string doing() const;

  const std::shared_ptr<WorldState> world_;
  const std::vector<int> ranks_;
  SharedMemory memory_;
  int rank_ = 0;
  uint64_t number_ = 0;
};

}  // namespace mtl::shm
