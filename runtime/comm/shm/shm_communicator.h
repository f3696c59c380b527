// Collectives over the shared memory of a group.
#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/shm/group_control.h"

namespace mtl::shm {

class ShmCommunicator final : public Communicator {
 public:
  explicit ShmCommunicator(std::unique_ptr<GroupControl> group);

  int size() const override { return group_->size(); }
  int rank() const override { return group_->rank(); }
  void barrier() override;
  void all_reduce(Tensor x, Reduce op) override;
  void reduce_scatter(Tensor all, Tensor mine) override;
  void all_gather(Tensor mine, Tensor all) override;
  void broadcast(Tensor x, int root) override;
  void all_to_all_v(Tensor from, std::span<const int64_t> send_counts, Tensor to,
                    std::span<const int64_t> recv_counts) override;
  void send(Tensor x, int to) override;
  void recv(Tensor x, int from) override;
  const Traffic& traffic() const override { return traffic_; }

 private:
  bool small(const Tensor& x) const { return x.bytes() <= kSmallBytes; }
  // Of an operation on `x`, in which peers read `read_by_peers`.
  Descriptor descriptor(Op op, const Tensor& x, const Tensor& read_by_peers) const;
  // After begin(): whether every rank's tensor can be read where it lies; then its addresses are in
  // tensors_.
  bool find_tensors();
  // Sets inputs_: the same offset in the memory of every rank.
  void inputs_from(const std::vector<char*>& bases, int64_t offset);

  void staged_all_reduce(const Tensor& x, Reduce op);
  void staged_reduce_scatter(const Tensor& all, const Tensor& mine);
  void staged_all_gather(const Tensor& mine, const Tensor& all);
  // Of an all_to_all: what comes from a rank, in elements.
  struct Piece {
    int64_t all = 0;           // that it sends to everybody
    int64_t first = 0;         // of those, the first one for us
    int64_t count = 0;         // for us
    int64_t place = 0;         // where they go
    bool is_in_slot = false;   // behind its counts
    bool is_resident = false;  // else it passes through staging
  };
  void staged_all_to_all(const Tensor& from, const Tensor& to, const std::vector<Piece>& pieces);
  void staged_broadcast(const Tensor& x, int root);

  const std::unique_ptr<GroupControl> group_;
  Traffic traffic_;
  std::vector<char*> tensors_, staging_;
  std::vector<const void*> inputs_;
  std::vector<void*> outputs_;
};

}  // namespace mtl::shm
