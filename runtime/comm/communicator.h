// Communicator: collectives among a group of ranks. Transports: shm/ (ranks of one host; arenas
// resident in shared memory), tcp/, and nccl/ in the CUDA plug-in. On the CPU's transports sums are
// taken in rank order, in f32 for bf16 and f16 data, so the result is the same on all ranks and
// transports. NCCL adds in an order of its own (nccl/nccl_communicator.h).
//
// A transport of the CPU has done an operation when it returns. One that works on a device's
// streams has enqueued it among the device's ops: it is done before ops that are enqueued later
// begin, and what the host must know of it, the device's copy_to_host() and synchronize() wait for.
// barrier(), and operations on memory of the host, wait on every transport.
//
// All ranks of a group call the same operations in the same order. An operation throws Error
// "comm.timeout" (Exit::timeout) when a peer does not arrive within the world's timeout, and
// "comm.peer_lost" (Exit::run_failed) when a peer is known dead or has destroyed its world, and
// "comm.mismatch" (Exit::run_failed) when the ranks call different operations or sizes. The first
// such error of any rank ends the world: every rank that waits or comes later throws it too.
//
// Threads: a Communicator is used by one thread at a time, and different Communicators of a world
// may be used at once. group() and allocate() are called by one thread at a time, also while other
// threads use Communicators.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "runtime/device/tensor.h"

namespace mtl {

enum class Reduce { sum, max };

// What a rank has put into a group's collectives, in bytes of payload: of the whole tensor (the n
// of the ring formulas, on every rank alike) for all_reduce, reduce_scatter, all_gather and
// broadcast; of its own messages to others for send and all_to_all. A group of one counts nothing.
struct Traffic {
  int64_t all_reduce = 0, reduce_scatter = 0, all_gather = 0, broadcast = 0, send = 0,
          all_to_all = 0;
  bool operator==(const Traffic&) const = default;
  // Member-wise.
  Traffic operator-(const Traffic& earlier) const {
    return {.all_reduce = all_reduce - earlier.all_reduce,
            .reduce_scatter = reduce_scatter - earlier.reduce_scatter,
            .all_gather = all_gather - earlier.all_gather,
            .broadcast = broadcast - earlier.broadcast,
            .send = send - earlier.send,
            .all_to_all = all_to_all - earlier.all_to_all};
  }
};

// Where a group's operations go on beside the device's ops: a stream of a device. Belongs to the
// thread of the device.
class CommLane {
 public:
  virtual ~CommLane() = default;
  // The group's operations that `work` calls begin when the device's ops enqueued so far are done,
  // in order among themselves. Returns their number, ascending from 1.
  virtual uint64_t run(const std::function<void()>& work) = 0;
  // Ops that the device is given from now on begin when these operations, and so all before them,
  // are done.
  virtual void join(uint64_t number) = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int size() const = 0;
  virtual int rank() const = 0;  // within the group
  virtual void barrier() = 0;
  virtual void all_reduce(Tensor x, Reduce op = Reduce::sum) = 0;  // all but u8; in place
  // Rank r receives the sum of elements [r*n/size, (r+1)*n/size) of `all` in `mine` (n/size
  // elements), which is that very range of `all` (in place) or does not overlap `all`. In place,
  // the other ranges of `all` are left undefined; else all of it. numel % size == 0.
  virtual void reduce_scatter(Tensor all, Tensor mine) = 0;
  // Rank r contributes `mine` (n/size elements), which is the range [r*n/size, (r+1)*n/size) of
  // `all` or does not overlap `all`; afterwards all of `all` is complete. numel % size == 0.
  virtual void all_gather(Tensor mine, Tensor all) = 0;
  virtual void broadcast(Tensor x, int root) = 0;
  // Every rank sends a piece of `from` to every rank, itself included, and receives one from each
  // in `to`, both in the order of the ranks: send_counts[r] elements go to rank r, recv_counts[r]
  // come from it (0 is fine). The counts add up to from.numel() and to.numel(); the two tensors
  // have one type, any, and do not overlap. What a rank sends must be what its peer expects: on
  // the CPU's transports another count is "comm.mismatch" on the rank that expects it; on NCCL the
  // operation then does not end, and times out.
  virtual void all_to_all_v(Tensor from, std::span<const int64_t> send_counts, Tensor to,
                            std::span<const int64_t> recv_counts) = 0;
  // Several of them, one behind the other in both tensors: the counts are [rounds, size]. NCCL does
  // them as one operation.
  virtual void all_to_all_rounds(Tensor from, std::span<const int64_t> send_counts, Tensor to,
                                 std::span<const int64_t> recv_counts);
  // One with equal pieces: numel % size == 0.
  void all_to_all(Tensor from, Tensor to);
  // Buffered: send() returns before its recv() as long as less than 64 MiB are under way between
  // the two (beyond that it waits for recv()). Messages of one pair arrive in order.
  // One thread of a rank may send while another receives.
  virtual void send(Tensor x, int to) = 0;
  virtual void recv(Tensor x, int from) = 0;
  virtual const Traffic& traffic() const = 0;  // since the group was made
  // Null: operations are done when they return, and another thread can do them beside.
  virtual CommLane* lane() { return nullptr; }
  // From now on this group's lane is that of `other`, of the same world, which outlives this: what
  // both do there is in one order.
  virtual void share_lane(Communicator& /*other*/) {}
  // Throws the failure that the world has had, if any. After the host has waited for a device whose
  // streams communicate: a failed operation ends the wait too, and its result is worth nothing.
  virtual void check() {}
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
  // The same for ranks that exchange a few numbers and no tensors: a transport may keep less for
  // it.
  virtual std::unique_ptr<Communicator> group_for_numbers(std::span<const int> ranks) {
    return group(ranks);
  }
  // Collective over the world: zeroed memory, 4096-byte aligned, that peers can read directly
  // (collectives on it need no staging). The ranks may ask for different sizes.
  virtual void* allocate(size_t bytes) = 0;
  // For a rank that has failed, from any of its threads: its operations under way in other threads
  // and all later ones throw "comm.peer_lost", and peers that wait for it learn that it has left.
  // Without it, they learn when the world and its last Communicator are destroyed.
  virtual void leave() = 0;
};

// One rank, no peers.
std::unique_ptr<CommWorld> make_self_world();

}  // namespace mtl
