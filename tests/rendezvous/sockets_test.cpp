// What both ends of a connection of messages have: without it a bad line silences them for minutes.
#include "rendezvous/sockets.h"

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
