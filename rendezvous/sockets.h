// TCP sockets as this room needs them. Every descriptor is made close-on-exec and non-blocking in
// the call that makes it: the owner forks children at any time. No event loop here.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <sys/socket.h>

#include "common/files.h"

namespace mtl::net {

struct Address {
  sockaddr_storage storage = {};
  socklen_t length = 0;
  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// "[::1]" is how people write an IPv6 address beside a port.
std::string bare(const std::string& address);

struct Lookup {
  std::vector<Address> addresses;  // in the resolver's order, each once
  std::string error;               // why there is none
};
// Asks the resolver (may take seconds).
Lookup look_up(const std::string& host, uint16_t port);
// The same for what needs no resolver; no addresses and no error if `host` is a name.
Lookup look_up_numeric(const std::string& host, uint16_t port);

// Numeric, without the port; IPv4 on a socket that serves both looks like IPv4.
std::string text(const Address& address);
std::string local_address(int fd);
std::string peer_address(int fd);

// Listens with the longest backlog that the system allows; "::" serves IPv4 too. What is accepted
// inherits both kinds of tune(). Throws Error "rendezvous.address" / "rendezvous.port"
// (Exit::environment). Of a name with several addresses at the first that this machine has.
Fd listen_on(const std::string& address, uint16_t port, std::chrono::milliseconds user_timeout);
// The same at all of them, and at one port: others may come by any. A port that somebody has at one
// of them is taken.
std::vector<Fd> listen_on_all(const std::string& address, uint16_t port,
                              std::chrono::milliseconds user_timeout);
// At those of these that this machine has: a name may have others' addresses too, and of a kind of
// network that is not here. Or nothing and errno. `most`: no more than so many.
std::vector<Fd> listen_at(const std::vector<Address>& addresses,
                          std::chrono::milliseconds user_timeout, size_t most = SIZE_MAX);
uint16_t port_of(int listener);
// One connection, or an empty Fd and errno.
Fd accept_one(int listener);

// A connect under way (error EINPROGRESS) or done (0), tuned both ways; else an empty Fd and why.
// `from` (may be null) is the local address to use.
struct Dial {
  Fd socket;
  int error = 0;
  bool bad_from = false;  // it was `from` that failed
};
Dial dial(const Address& to, const Address* from, std::chrono::milliseconds user_timeout);
// Once it is writable: 0 or why it failed. A socket that has met itself (a connect to a free port
// of this host may, when the kernel picks that very port for our end) counts as refused.
int dial_result(int fd);

// Small messages leave at once, and a peer whose machine vanished is noticed: after `user_timeout`
// where something waits for its acknowledgement, after half a minute where nothing is said.
void tune(int fd, std::chrono::milliseconds user_timeout);
// And for connections of few and short messages, heartbeats above all: what a bad line loses is
// repeated at a steady pace instead of ever more rarely, and what waits to be sent waits where a
// heartbeat can overtake it. Not for streams that are to fill a line.
void tune_for_messages(int fd);

}  // namespace mtl::net
