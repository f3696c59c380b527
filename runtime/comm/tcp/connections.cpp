#include "runtime/comm/tcp/connections.h"

#include <utility>

#include <fmt/format.h>

#include "runtime/comm/operation.h"

namespace mtl::tcp {

Connection::Connection(std::shared_ptr<Core> core, Fd fd)
    : core_(std::move(core)), fd_(std::move(fd)) {
  core_->peers->in_use(fd_.get());
}

Connection::~Connection() {
  if (fd_) core_->peers->not_in_use(fd_.get());
}

std::vector<Connection> connect_group(const std::shared_ptr<Core>& core, uint64_t key,
                                      std::span<const int> ranks) {
  const int own = core->peers->rank();
  for (const int rank : ranks) {
    if (rank < own) core->network->connect({Purpose::group, key, rank});
  }
  std::vector<Connection> connections;
  connections.reserve(ranks.size());
  for (const int rank : ranks) {
    if (rank == own) {
      connections.emplace_back();
      continue;
    }
    connections.emplace_back(core, core->peers->take({Purpose::group, key, rank}, [&] {
      return fmt::format("waits for rank {} to make {}", rank, comm::group_name(ranks));
    }));
  }
  return connections;
}

}  // namespace mtl::tcp
