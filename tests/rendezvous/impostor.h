// Listens on a loopback port and welcomes who connects, in the right form and without knowing the
// token.
#pragma once

#include <cstdint>
#include <string>
#include <thread>
#include <unistd.h>

#include <netinet/in.h>
#include <sys/socket.h>

#include <doctest/doctest.h>

#include "rendezvous/auth.h"
#include "rendezvous/protocol.h"

namespace mtl::test {

class Impostor {
 public:
  Impostor() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    REQUIRE(::listen(listener_, 1) == 0);
    socklen_t length = sizeof(address);
    REQUIRE(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length) == 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  // Somebody has to have connected.
  ~Impostor() {
    thread_.join();
    ::close(listener_);
  }
  Impostor(const Impostor&) = delete;
  Impostor& operator=(const Impostor&) = delete;
  uint16_t port() const { return port_; }

 private:
  void serve() const {
    const int fd = ::accept(listener_, nullptr, nullptr);
    char bytes[256];
    for (const std::string& answer :
         {wire::encode(wire::Challenge{auth::random_nonce()}), wire::encode(wire::Welcome{})}) {
      (void)!::recv(fd, bytes, sizeof(bytes), 0);
      const std::string text = wire::frame(answer);
      (void)!::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    }
    ::close(fd);
  }

  const int listener_;
  uint16_t port_ = 0;
  std::thread thread_;
};

}  // namespace mtl::test
