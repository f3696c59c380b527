// Communicator: collectives among a group of ranks. Transports: shm/ (ranks of one host; arenas
// resident in shared memory), later tcp/ and nccl/. Sums are taken in rank order on every
// transport, in f32 for bf16 data, so the result is the same on all ranks and transports.
//
// All ranks of a group call the same operations in the same order. An operation throws Error
// "comm.timeout" (Exit::timeout) when a peer does not arrive within the world's timeout, and
// "comm.peer_lost" (Exit::run_failed) when a peer is known dead or has destroyed its world, and
// "comm.mismatch" (Exit::run_failed) when the ranks call different operations or sizes. The first
// such error of any rank ends the world: every rank that waits or comes later throws it too.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/device/tensor.h"

namespace mtl {

enum class Reduce { sum, max };

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int size() const = 0;
  virtual int rank() const = 0;  // within the group
  virtual void barrier() = 0;
  virtual void all_reduce(Tensor x, Reduce op = Reduce::sum) = 0;  // f32, f64, bf16, i32; in place
  // Rank r receives the sum of elements [r*n/size, (r+1)*n/size) into that same range of x; other
  // ranges are left undefined. numel % size == 0.
  virtual void reduce_scatter(Tensor x) = 0;
  // Rank r contributes its range [r*n/size, (r+1)*n/size) of x; afterwards all of x is complete.
  // numel % size == 0.
  virtual void all_gather(Tensor x) = 0;
  virtual void broadcast(Tensor x, int root) = 0;
  // Buffered: send() returns before its recv() as long as less than 64 MiB are under way between
  // the two (beyond that it waits for recv()). Messages of one pair arrive in order.
  virtual void send(Tensor x, int to) = 0;
  virtual void recv(Tensor x, int from) = 0;
  // Payload bytes that this rank has put into collectives so far.
  virtual int64_t bytes_sent() const = 0;
};

// The transport of one job as seen by one rank: makes the groups and the memory that they like
// best.
class CommWorld {
 public:
  virtual ~CommWorld() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Collective over `ranks` (ascending, containing this rank): all members call it, in the same
  // global order. A group of one costs nothing.
  virtual std::unique_ptr<Communicator> group(std::span<const int> ranks) = 0;
  // Collective over the world: zeroed memory, 4096-byte aligned, that peers can read directly
  // (collectives on it need no staging).
  virtual void* allocate(size_t bytes) = 0;
};

// One rank, no peers.
std::unique_ptr<CommWorld> make_self_world();

}  // namespace mtl
