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
  void staged_broadcast(const Tensor& x, int root);

  const std::unique_ptr<GroupControl> group_;
  Traffic traffic_;
  std::vector<char*> tensors_, staging_;
  std::vector<const void*> inputs_;
  std::vector<void*> outputs_;
};

}  // namespace mtl::shm
