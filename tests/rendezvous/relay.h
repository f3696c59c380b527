// A cable with faults between two ends of a TCP connection: an in-process relay that can delay, cut
// off without a word (nothing passes, nothing closes), stop one direction, reset, end in the middle
// of what it has, and spoil bytes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <poll.h>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <doctest/doctest.h>

namespace mtl::test {

class Relay {
 public:
  explicit Relay(uint16_t target) : target_(target) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_in address = loopback(0);
    REQUIRE(::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    REQUIRE(::listen(listener_, 64) == 0);
    socklen_t length = sizeof(address);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~Relay() {
    stop_ = true;
    thread_.join();
    for (Cable& cable : cables_) cable.close();
    ::close(listener_);
  }
  uint16_t port() const { return port_; }

  std::atomic<int> delay_ms{0};
  std::atomic<bool> to_server{true};  // false: bytes of that direction are swallowed
  std::atomic<bool> to_client{true};
  std::atomic<bool> spoil{false};  // the next bytes to the server are garbage
  std::atomic<int> cut_after{-1};  // to the server: so many bytes more, then the end
  std::atomic<bool> reset{false};  // both sides, at once
  std::atomic<int64_t> bytes_to_server{0};
  std::atomic<int> connections{0};

 private:
  using Clock = std::chrono::steady_clock;
  struct Piece {
    Clock::time_point due;
    std::string bytes;
  };
  struct Cable {
    int client = -1, server = -1;
    std::deque<Piece> up, down;
    void close() {
      if (client >= 0) ::close(client);
      if (server >= 0) ::close(server);
      client = server = -1;
    }
  };

  static sockaddr_in loopback(uint16_t port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }

  void run() {
    while (!stop_) {
      std::vector<pollfd> waiting = {{listener_, POLLIN, 0}};
      for (const Cable& cable : cables_) {
        waiting.push_back({cable.client, POLLIN, 0});
        waiting.push_back({cable.server, POLLIN, 0});
      }
      ::poll(waiting.data(), waiting.size(), 2);
      if (const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC); fd >= 0) {
        Cable cable;
        cable.client = fd;
        cable.server = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const sockaddr_in address = loopback(target_);
        if (::connect(cable.server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) !=
            0) {
          cable.close();
        } else {
          cables_.push_back(std::move(cable));
          ++connections;
        }
      }
      const bool now_reset = reset.exchange(false);
      for (Cable& cable : cables_) {
        if (cable.client < 0) continue;
        if (now_reset) {
          const linger hard = {1, 0};
          for (const int fd : {cable.client, cable.server}) {
            ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
          }
          cable.close();
          continue;
        }
        if (!take(cable.client, cable.up, true) || !take(cable.server, cable.down, false) ||
            !give(cable.server, cable.up, true) || !give(cable.client, cable.down, false)) {
          cable.close();
        }
      }
    }
  }

  bool take(int fd, std::deque<Piece>& pieces, bool up) {
    if (!(up ? to_server : to_client)) return true;  // even its end is not seen
    char bytes[65536];
    const ssize_t got = ::recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (got == 0) return false;
    if (up && spoil.exchange(false)) std::fill(bytes, bytes + got, '\xee');
    pieces.push_back({Clock::now() + std::chrono::milliseconds(delay_ms.load()),
                      std::string(bytes, static_cast<size_t>(got))});
    return true;
  }

  bool give(int fd, std::deque<Piece>& pieces, bool up) {
    while (!pieces.empty() && pieces.front().due <= Clock::now()) {
      if (!(up ? to_server : to_client)) return true;
      std::string& bytes = pieces.front().bytes;
      size_t size = bytes.size();
      const int cut = cut_after;
      const bool last = up && cut >= 0 && static_cast<size_t>(cut) <= size;
      if (last) size = static_cast<size_t>(cut);
      const ssize_t sent = ::send(fd, bytes.data(), size, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
      if (sent < 0) return false;
      if (up) bytes_to_server += sent;
      if (last) {
        cut_after = -1;
        return false;
      }
      if (up && cut >= 0) cut_after = cut - static_cast<int>(sent);
      bytes.erase(0, static_cast<size_t>(sent));
      if (bytes.empty()) pieces.pop_front();
    }
    return true;
  }

  const uint16_t target_;
  uint16_t port_ = 0;
  int listener_ = -1;
  std::vector<Cable> cables_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace mtl::test
