// The TCP transport: ranks anywhere that reach each other's addresses. Sums have the bits of the
// shared-memory transport.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "common/error.h"
#include "rendezvous/store.h"
#include "runtime/comm/communicator.h"

namespace mtl {

struct TcpOptions {
  int rank = 0;
  int size = 1;
  std::string address = "127.0.0.1";  // numeric, of this host: the peers connect to it
  std::string token;
  int64_t generation = 0;
  std::chrono::milliseconds timeout{600'000};  // for anything of a collective to move
  std::string prefix = "tcp/";                 // of the keys in the store (holds the generation)
  bool spins = false;                          // a rank that waits has a CPU of its own to do it on
  // The world's end by a failure of any rank; called by any thread.
  std::function<void(const Error&)> on_failure = {};
};

class TcpWorld : public CommWorld {
 public:
  // Ends the world for all its ranks, for a reason from outside.
  virtual void end(const Error& error) = 0;
};

// Rendezvous through `store`. Throws what Communicator documents, "comm.listen" and "comm.connect"
// (Exit::environment).
std::unique_ptr<TcpWorld> make_tcp_world(Store& store, const TcpOptions& options);

}  // namespace mtl
