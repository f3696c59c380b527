// A port that is kept without listening: nobody gets it by accident, a server can take it on
// purpose.
#include "launcher/system/reserved_port.h"

#include <cerrno>
#include <unistd.h>
#include <vector>

#include <netinet/in.h>
#include <sys/socket.h>

#include <doctest/doctest.h>

#include "common/error.h"

using namespace mtl;

namespace {

struct Bound {
  Fd fd;
  uint16_t port = 0;
  int error = 0;
};

Bound bind_to(int family, uint16_t port, bool reuse) {
  Bound bound;
  bound.fd = Fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (reuse) setsockopt(bound.fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_storage address{};
  socklen_t size = 0;
  if (family == AF_INET) {
    auto* four = reinterpret_cast<sockaddr_in*>(&address);
    four->sin_family = AF_INET;
    four->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    four->sin_port = htons(port);
    size = sizeof *four;
  } else {
    auto* six = reinterpret_cast<sockaddr_in6*>(&address);
    six->sin6_family = AF_INET6;
    six->sin6_addr = in6addr_any;
    six->sin6_port = htons(port);
    size = sizeof *six;
  }
  if (bind(bound.fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) {
    bound.error = errno;
    return bound;
  }
  size = sizeof address;
  getsockname(bound.fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
  bound.port = ntohs(family == AF_INET ? reinterpret_cast<sockaddr_in*>(&address)->sin_port
                                       : reinterpret_cast<sockaddr_in6*>(&address)->sin6_port);
  return bound;
}

}  // namespace

TEST_CASE("a reserved port is given to nobody who asks for any port") {
  const ReservedPort reserved(0);
  REQUIRE(reserved.port() > 0);
  // Batch by batch: each holds many ports at once, so that the free ones are gone through.
  for (int round = 0; round < 4; ++round) {
    std::vector<Bound> batch;
    for (int i = 0; i < 2000; ++i) {
      batch.push_back(bind_to(AF_INET, 0, i % 2 == 0));
      if (batch.back().error != 0) break;  // the limit of open files
      REQUIRE(batch.back().port != reserved.port());
    }
    CHECK(batch.size() > 100);
  }
  CHECK(bind_to(AF_INET, reserved.port(), false).error == EADDRINUSE);
}

TEST_CASE("a server with SO_REUSEADDR listens on a reserved port") {
  const ReservedPort reserved(0);
  for (const int family : {AF_INET, AF_INET6}) {
    const Bound server = bind_to(family, reserved.port(), true);
    if (family == AF_INET6 && !server.fd) continue;  // a machine without IPv6
    CHECK(server.error == 0);
    CHECK(listen(server.fd.get(), 1) == 0);
  }
}

TEST_CASE("a taken port names who has it") {
  const ReservedPort any(0);
  Bound server = bind_to(AF_INET, 0, false);
  REQUIRE(listen(server.fd.get(), 1) == 0);
  try {
    const ReservedPort same(server.port);
    FAIL("a port that somebody listens on was reserved");
  } catch (const Error& error) {
    const Diagnostic& diagnostic = error.diagnostics()[0];
    CHECK(error.exit() == Exit::environment);
    CHECK(diagnostic.code == "launch.port");
    CHECK(diagnostic.what.find(std::to_string(server.port)) != std::string::npos);
    CHECK(diagnostic.what.find("process " + std::to_string(getpid())) != std::string::npos);
  }
  const uint16_t port = server.port;
  server.fd.reset();
  CHECK(ReservedPort(port).port() == port);
  CHECK(port_owner(port).empty());
}
