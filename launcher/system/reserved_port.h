// A TCP port that is ours from now on although nobody listens there yet: a socket bound with
// SO_REUSEADDR and left at that. The system gives the port to nobody else who asks for any free
// one, and a plain bind to it is refused; a program that sets SO_REUSEADDR, as servers do
// (PyTorch's store too), can listen there while we hold it.
#pragma once

#include <cstdint>
#include <string>

#include "common/files.h"

namespace mtl {

class ReservedPort {
 public:
  ReservedPort() = default;
  // 0 = any free one. On all addresses, IPv6 and IPv4 alike; IPv4 only where the machine has no
  // IPv6. Throws Error (Exit::environment, code launch.port) that names who has the port.
  explicit ReservedPort(uint16_t port);
  // Where somebody else has `port`, any free one, and `taken` says who: "port 29500 is taken by
  // ...".
  static ReservedPort or_another(uint16_t port, std::string& taken);
  uint16_t port() const { return port_; }

 private:
  // errno as it is on failure.
  bool bind(uint16_t port);

  Fd socket_;
  uint16_t port_ = 0;
};

// Who listens on a port, from /proc: "process 123 (python3 train.py)"; empty if that cannot be seen
// (another user's process).
std::string port_owner(uint16_t port);

}  // namespace mtl
