#include "runtime/comm/communicator.h"

#include <numeric>

#include "runtime/comm/check.h"

namespace mtl {

void Communicator::all_to_all(Tensor from, Tensor to) {
  comm::check_divisible("all_to_all", from, size());
  comm::check_divisible("all_to_all", to, size());
  const auto ranks = static_cast<size_t>(size());
  const std::vector<int64_t> send(ranks, from.numel() / size()), recv(ranks, to.numel() / size());
  all_to_all_v(from, send, to, recv);
}

void Communicator::all_to_all_rounds(Tensor from, std::span<const int64_t> send_counts, Tensor to,
                                     std::span<const int64_t> recv_counts) {
  const auto ranks = static_cast<size_t>(size());
  comm::check_all_to_all(from, send_counts, to, recv_counts, rank(), size(),
                         send_counts.size() / ranks);
  int64_t sent = 0, received = 0;
  for (size_t at = 0; at < send_counts.size(); at += ranks) {
    const auto send = send_counts.subspan(at, ranks), recv = recv_counts.subspan(at, ranks);
    const int64_t out = std::accumulate(send.begin(), send.end(), int64_t{0});
    const int64_t in = std::accumulate(recv.begin(), recv.end(), int64_t{0});
    all_to_all_v(from.slice(sent, out), send, to.slice(received, in), recv);
    sent += out;
    received += in;
  }
}

}  // namespace mtl
