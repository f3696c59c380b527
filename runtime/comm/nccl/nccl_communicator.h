// Collectives and messages of a group through NCCL.
//
// Where things run. A collective is enqueued in the device's compute stream, among its ops; within
// CommLane::run() in a stream of the group beside it, between two events.
//
// Messages. NCCL's sends wait for their receivers, so two ranks that both send before they receive
// would wait for each other for ever; the interleaved pipeline does that. So a send leaves from a
// copy, in a stream and through a communicator of its own for each direction between two ranks, and
// holds nobody up until the copies of earlier sends have taken all the room: as many as the plan
// counts on (plan.cpp, channel_capacity()). NCCL connects two ranks when they first exchange
// something, which holds up the host of one until the other's comes: they greet each other in the
// thread that makes the communicators.
//
// CUDA loads a kernel when it is first launched, and may wait for all that the GPU is at: a rank
// then goes on when its messages are received and its groups have met, as if nothing of it were
// buffered. Every schedule of ours bears that, since a pass's kernels are first launched in a
// rank's first forward and backward; the tests' stand-in waits so for every op and shape.
//
// Sums. NCCL adds in the order of its rings and trees, and rounds sums of bf16 and f16 at every
// step, so they are not the bits of the CPU's transports; NCCL_ALGO=Ring with NCCL_PROTO=Simple
// makes them at least the same from run to run of one layout on one machine. The layout tests
// compare bits on the CPU and bounds on GPUs.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/nccl/nccl_state.h"

namespace mtl::nccl {

class NcclCommunicator final : public Communicator, private CommLane {
 public:
  NcclCommunicator(std::shared_ptr<State> state, GroupName name);
  ~NcclCommunicator() override;

  int size() const override { return static_cast<int>(name_.ranks.size()); }
  int rank() const override { return rank_; }
  void barrier() override;
  void all_reduce(Tensor x, Reduce op) override;
  void reduce_scatter(Tensor all, Tensor mine) override;
  void all_gather(Tensor mine, Tensor all) override;
  void broadcast(Tensor x, int root) override;
  void all_to_all_v(Tensor from, std::span<const int64_t> send_counts, Tensor to,
                    std::span<const int64_t> recv_counts) override;
  void all_to_all_rounds(Tensor from, std::span<const int64_t> send_counts, Tensor to,
                         std::span<const int64_t> recv_counts) override;
  void send(Tensor x, int to) override;
  void recv(Tensor x, int from) override;
  const Traffic& traffic() const override { return traffic_; }
  CommLane* lane() override { return size() > 1 ? &owner() : nullptr; }
  void share_lane(Communicator& other) override;
  void check() override { state_->check(); }

 private:
  // What is sent leaves from here.
  struct Slot {
    char* memory = nullptr;
    Event sent = nullptr;
    bool used = false;
  };
  // The two directions between us and a peer. They connect in a thread, and what is sent before
  // leaves then: ranks that all send first must not all wait here for each other.
  struct Pair {
    std::shared_ptr<Comm> to, from;
    Stream stream = nullptr;  // of what we send
    std::vector<Slot> slots;
    int64_t slot_bytes = 0;
    size_t next = 0;
    char* greeting = nullptr;
    Stream greeted_stream = nullptr;
    Event greeted = nullptr;  // before anything else is received

    std::mutex mutex;
    std::condition_variable changed;
    bool connected = false;
    std::vector<std::function<void()>> waiting;  // sends
    std::thread connector;
  };
  struct Mark {
    uint64_t number;
    Event event;
  };

  uint64_t run(const std::function<void()>& work) override;
  void join(uint64_t number) override;

  // Of the lane.
  NcclCommunicator& owner() { return owner_ != nullptr ? *owner_ : *this; }
  Stream stream();
  Comm& everybody();
  Pair& pair(int peer);
  void connect(Pair& pair, int own, int other);
  void greet(Pair& pair, Comm& comm, bool sends);
  void wait_connected(Pair& pair);
  void collective(const std::string& what, int64_t bytes,
                  const std::function<Result(CommHandle, Stream)>& call);
  // The next room for a message, free when stream() has come so far.
  Slot& slot_of(Pair& pair, int64_t bytes);
  void make_room(Pair& pair, int64_t bytes);
  // Memory of the device for a tensor of the host; copy() enqueues, finish() waits as well.
  char* staging(int64_t bytes);
  void copy(void* to, const void* from, int64_t bytes);
  void finish(void* host, const void* staged, int64_t bytes);
  bool on_device(const Tensor& x) { return state_->streams().on_device(x.data); }

  const std::shared_ptr<State> state_;
  const GroupName name_;
  int rank_ = 0;
  std::shared_ptr<Comm> everybody_;
  std::map<int, std::unique_ptr<Pair>> pairs_;
  Traffic traffic_;

  NcclCommunicator* owner_ = nullptr;  // another one's lane is ours too
  Stream lane_ = nullptr;
  bool beside_ = false;
  uint64_t begun_ = 0, joined_ = 0;  // numbers on the lane
  std::deque<Mark> marks_;           // of what is not joined yet, ascending
  uint64_t collectives_until_ = 0;   // the last number that had a collective of this group
  char* staging_ = nullptr;
  int64_t staging_bytes_ = 0;
};

}  // namespace mtl::nccl
