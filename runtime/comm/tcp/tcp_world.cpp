// How the ranks of a TCP world find each other.
#include "runtime/comm/tcp/tcp_world.h"

#include <array>
#include <map>
#include <unistd.h>
#include <utility>
#include <vector>

#include "common/error.h"
#include "runtime/comm/check.h"
#include "runtime/comm/meeting.h"
#include "runtime/comm/operation.h"
#include "runtime/comm/self_world.h"
#include "runtime/comm/tcp/network.h"
#include "runtime/comm/tcp/peers.h"
#include "runtime/comm/tcp/tcp_communicator.h"

namespace mtl {

namespace {

using namespace tcp;

class World final : public TcpWorld {
 public:
  explicit World(std::shared_ptr<Core> core) : core_(std::move(core)) {}

  int rank() const override { return core_->peers->rank(); }
  int size() const override { return core_->peers->size(); }

  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    comm::check_group(ranks, rank(), size());
    if (ranks.size() == 1) return make_self_communicator();
    core_->peers->check();
    // The same ranks may make several groups: the n-th of one rank is the n-th of all.
    const uint64_t occurrence = occurrences_[std::vector<int>(ranks.begin(), ranks.end())]++;
    return std::make_unique<TcpCommunicator>(core_, comm::group_key(ranks, occurrence), ranks);
  }

  // Sockets read and write any memory.
  void* allocate(size_t bytes) override { return memory_->allocate(bytes); }
  void leave() override { core_->peers->leave(); }
  void end(const Error& error) override { core_->peers->end(error); }

 private:
  const std::shared_ptr<Core> core_;
  const std::unique_ptr<CommWorld> memory_ = make_self_world();
  std::map<std::vector<int>, uint64_t> occurrences_;
};

Card own_card(const TcpOptions& options, uint16_t port) {
  Card card;
  std::array<char, 256> host = {};
  ::gethostname(host.data(), host.size() - 1);
  card.host = host[0] != '\0' ? host.data() : "unknown";
  card.pid = ::getpid();
  card.address = options.address;
  card.port = port;
  return card;
}

}  // namespace

std::unique_ptr<TcpWorld> make_tcp_world(Store& store, const TcpOptions& options) {
  comm::check_member("make_tcp_world", options.rank, options.size);
  auto core = std::make_shared<Core>();
  core->spins = options.spins;
  core->network = make_network({.rank = options.rank,
                                .address = options.address,
                                .token = options.token,
                                .generation = options.generation});
  const std::vector<std::string> texts =
      comm::meet(store, options.prefix + "at", options.rank, options.size,
                 own_card(options, core->network->port()).encode(), options.timeout);
  std::vector<Card> cards;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const std::optional<Card> card = Card::decode(texts[rank]);
    if (!card) comm::refuse_card(static_cast<int>(rank));
    cards.push_back(*card);
  }
  core->peers = std::make_shared<Peers>(options.rank, std::move(cards), options.timeout);
  core->peers->on_failure = options.on_failure;
  core->network->start(core->peers);
  return std::make_unique<World>(std::move(core));
}

}  // namespace mtl
