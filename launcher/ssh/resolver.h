// Names to addresses without blocking the loop. getaddrinfo cannot be interrupted: threads that are
// still in it when the resolver goes away end by themselves and touch nothing of it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sys/socket.h>

namespace mtl::ssh {

class Loop;

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
  std::string text() const;  // "10.0.0.1:22", "[fd00::1]:22"
};

struct Resolved {
  std::vector<Address> addresses;
  std::string error;  // when there are none
};

class Resolver {
 public:
  explicit Resolver(Loop& loop);
  ~Resolver();
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;
  // `family`: AF_UNSPEC, AF_INET or AF_INET6. `done` runs in the loop; at once for addresses.
  void resolve(const std::string& name, int port, int family, std::function<void(Resolved)> done);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace mtl::ssh
