// What both ends of a connection of messages have: without it a bad line silences them for minutes.
// And where a name of several addresses is listened at.
#include "rendezvous/sockets.h"

#include <cerrno>
#include <poll.h>

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <doctest/doctest.h>

#include "common/files.h"

using namespace mtl;
using namespace std::chrono_literals;

namespace {

std::string congestion_control(int fd) {
  char name[32] = "";
  socklen_t size = sizeof name;
  getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size);
  return name;
}

int number(int fd, int option) {
  int value = -1;
  socklen_t size = sizeof value;
  getsockopt(fd, IPPROTO_TCP, option, &value, &size);
  return value;
}

}  // namespace

TEST_CASE("both ends of a connection repeat what is lost at a steady pace") {
  const Fd listener = net::listen_on("127.0.0.1", 0, 7s);
  const net::Lookup to = net::look_up_numeric("127.0.0.1", net::port_of(listener.get()));
  const net::Dial dial = net::dial(to.addresses.at(0), nullptr, 7s);
  REQUIRE(dial.socket);
  pollfd arrived = {listener.get(), POLLIN, 0};
  REQUIRE(poll(&arrived, 1, 10'000) == 1);
  const Fd accepted = net::accept_one(listener.get());
  REQUIRE(accepted);
  for (const int fd : {dial.socket.get(), accepted.get()}) {
    // Thin streams are known as such only under a congestion control that lowers ssthresh.
    CHECK(congestion_control(fd) == "reno");
    CHECK(number(fd, TCP_THIN_LINEAR_TIMEOUTS) == 1);
    CHECK(number(fd, TCP_USER_TIMEOUT) == 7'000);
    CHECK(number(fd, TCP_NODELAY) == 1);
  }
}

TEST_CASE("of a name's addresses those that this machine has are listened at") {
  const auto address = [](const char* text) {
    return net::look_up_numeric(text, 0).addresses.at(0);
  };
  // Of the networks that are for documents (RFC 5737, 3849): no machine has these.
  const net::Address other = address("192.0.2.1"), other6 = address("2001:db8::1");
  const std::vector<net::Address> some = {other6, address("127.0.0.1"), other, address("fe80::1"),
                                          address("127.0.0.2")};
  const std::vector<Fd> listeners = net::listen_at(some, 7s);
  REQUIRE(listeners.size() == 2);
  CHECK(net::local_address(listeners[0].get()) == "127.0.0.1");
  CHECK(net::local_address(listeners[1].get()) == "127.0.0.2");
  const uint16_t port = net::port_of(listeners[0].get());
  CHECK(net::port_of(listeners[1].get()) == port);
  CHECK(net::listen_at(some, 7s, 1).size() == 1);
  CHECK(net::listen_at({other, other6}, 7s).empty());
  // A port that is taken at one address is not used at the next: who has it may be the one to join.
  const auto at = [port](const char* text) {
    return net::look_up_numeric(text, port).addresses.at(0);
  };
  CHECK(net::listen_at({at("127.0.0.1"), at("127.0.0.3")}, 7s).empty());
  CHECK(errno == EADDRINUSE);
  CHECK(net::listen_at({at("127.0.0.3"), at("127.0.0.1")}, 7s).empty());
  CHECK(errno == EADDRINUSE);
  CHECK(net::listen_at({at("127.0.0.3")}, 7s).size() == 1);
}
