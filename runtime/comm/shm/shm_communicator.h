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
  void reduce_scatter(Tensor x) override;
  void all_gather(Tensor x) override;
  void broadcast(Tensor x, int root) override;
  void send(Tensor x, int to) override;
  void recv(Tensor x, int from) override;
  int64_t bytes_sent() const override { return bytes_sent_; }

 private:
  bool small(const Tensor& x) const { return x.bytes() <= kSmallBytes; }
  Descriptor descriptor(Op op, const Tensor& x) const;
  // After begin(): whether every rank's tensor can be read where it lies; then its addresses are in
  // tensors_.
  bool find_tensors();
  // Sets inputs_: the same offset in the memory of every rank.
  void inputs_from(const std::vector<char*>& bases, int64_t offset);

  void staged_all_reduce(const Tensor& x, Reduce op);
  void staged_reduce_scatter(const Tensor& x);
  void staged_all_gather(const Tensor& x);
  void staged_broadcast(const Tensor& x, int root);

  const std::unique_ptr<GroupControl> group_;
  int64_t bytes_sent_ = 0;
  std::vector<char*> tensors_, staging_;
  std::vector<const void*> inputs_;
  std::vector<void*> outputs_;
};

}  // namespace mtl::shm
