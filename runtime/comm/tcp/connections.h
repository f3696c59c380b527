// The connections of one group: one to every other member for the collectives, and one per
// direction for the messages between two of them, made by the first message. Descriptors per rank:
// the sum over its groups of (members - 1), and as many again for the control connections; 64 ranks
// in three groups of all need 252.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "runtime/comm/tcp/network.h"
#include "runtime/comm/tcp/peers.h"

namespace mtl::tcp {

// What all groups of a rank share. The last one that lets go of it says that the rank leaves.
struct Core {
  std::shared_ptr<Peers> peers;
  std::unique_ptr<Network> network;  // ends before the peers do
  bool spins = false;                // every rank of this host has a CPU
};

// How long a rank looks again and again before it sleeps, where every rank has a CPU: a few times
// the cost of sleeping and waking up.
constexpr std::chrono::microseconds kSpin{50};

// A socket that leave() shuts down.
class Connection {
 public:
  Connection() = default;
  Connection(std::shared_ptr<Core> core, Fd fd);
  Connection(Connection&&) = default;
  Connection& operator=(Connection&&) = delete;
  ~Connection();
  int fd() const { return fd_.get(); }

 private:
  std::shared_ptr<Core> core_;
  Fd fd_;
};

// Connects this rank with all other members: higher ranks to lower ones. By rank in the group; our
// own is empty.
std::vector<Connection> connect_group(const std::shared_ptr<Core>& core, uint64_t key,
                                      std::span<const int> ranks);

}  // namespace mtl::tcp
