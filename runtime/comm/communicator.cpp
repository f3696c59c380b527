#include "runtime/comm/communicator.h"

#include "runtime/comm/check.h"

namespace mtl {

void Communicator::all_to_all(Tensor from, Tensor to) {
  comm::check_divisible("all_to_all", from, size());
  comm::check_divisible("all_to_all", to, size());
  const auto ranks = static_cast<size_t>(size());
  const std::vector<int64_t> send(ranks, from.numel() / size()), recv(ranks, to.numel() / size());
  all_to_all_v(from, send, to, recv);
}

}  // namespace mtl
