// The network of one rank: listens, connects, has every connection prove the run's token before it
// is heard, and keeps a control connection to every other rank on which deaths and failures are
// learned at once. All that in one thread, with Asio, which stays in network.cpp; a connection that
// has proved itself is handed over as a descriptor (Peers::arrived) and used without Asio.
//
//   connecting -> Hello       nonce and generation            (the messages of
//   rendezvous/protocol.h, listening  -> Challenge   its nonce                        under a key
//   derived from the token, so connecting -> Proof, Call HMAC over both; what for         that no
//   proof for the store is one here) listening  -> Welcome     its own HMAC
//
// Whoever does not prove the token and the generation in time is dropped, and nobody is told.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/comm/tcp/peers.h"

namespace mtl::tcp {

struct NetworkOptions {
  int rank = 0;
  std::string address = "127.0.0.1";  // numeric
  std::string token;
  int64_t generation = 0;
};

class Network {
 public:
  virtual ~Network() = default;  // says that we leave, and closes all that it holds
  virtual uint16_t port() const = 0;
  // Connects to all lower ranks and waits for all higher. Connections are accepted from the
  // network's construction on, and served from here on.
  virtual void start(std::shared_ptr<Peers> peers) = 0;
  // Does not wait: see Peers::take(). Only control and group connections (by the higher rank) and
  // channel_out.
  virtual void connect(const ConnectionKey& key) = 0;
};

// Listens. Throws Error "comm.listen" (Exit::environment).
std::unique_ptr<Network> make_network(const NetworkOptions& options);

}  // namespace mtl::tcp
