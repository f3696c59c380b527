// Collectives and messages over the TCP connections of a group.
#pragma once

#include <map>
#include <memory>
#include <span>

#include "runtime/comm/communicator.h"
#include "runtime/comm/tcp/channel.h"
#include "runtime/comm/tcp/transfer.h"

namespace mtl::tcp {

class TcpCommunicator final : public Communicator {
 public:
  // `key` names the group; `ranks` of the job, ascending. Returns when all members have come.
  TcpCommunicator(std::shared_ptr<Core> core, uint64_t key, std::span<const int> ranks);

  int size() const override { return transfer_.size(); }
  int rank() const override { return transfer_.rank(); }
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
  int job_rank(int rank) const { return transfer_.ranks()[static_cast<size_t>(rank)]; }

  const std::shared_ptr<Core> core_;
  const uint64_t key_;
  Transfer transfer_;
  Traffic traffic_;
  // By rank in the job. One thread sends, another may receive.
  std::map<int, OutgoingChannel> outgoing_;
  std::map<int, IncomingChannel> incoming_;
};

}  // namespace mtl::tcp
