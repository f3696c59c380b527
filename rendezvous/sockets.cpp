// getaddrinfo(3), socket(2) and the options of tcp(7).
#include "rendezvous/sockets.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <netdb.h>
#include <poll.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <fmt/format.h>

#include "common/error.h"

namespace mtl::net {

namespace {

constexpr int kSocketType = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
// TCP_RTO_MAX_MS: since Linux 6.15, not in the headers yet; the least that it takes is a second.
constexpr int kRtoMaxMs = 44;

Lookup look_up(const std::string& host, uint16_t port, int flags) {
  Lookup result;
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(bare(host).c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    result.error = error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error);
    return result;
  }
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (one->ai_addrlen > sizeof(sockaddr_storage)) continue;
    Address address;
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    address.length = one->ai_addrlen;
    const bool known =
        std::any_of(result.addresses.begin(), result.addresses.end(), [&](const Address& other) {
          return other.length == address.length &&
                 std::memcmp(&other.storage, &address.storage, address.length) == 0;
        });
    if (!known) result.addresses.push_back(address);
  }
  ::freeaddrinfo(found);
  if (result.addresses.empty()) result.error = "the name has no address";
  return result;
}

[[noreturn]] void throw_cannot_listen(const std::string& address, uint16_t port, int error) {
  throw Error(
      Exit::environment,
      {.code = "rendezvous.port",
       .what = fmt::format("cannot listen on {} port {}: {}", address, port, strerror(error)),
       .help = error == EADDRINUSE
                   ? "another program (perhaps an earlier run) has the port; choose another "
                     "main_process_port (on one machine 0 is a free one)"
                   : "the address must be one of this machine; see: ip address"});
}

void option(int fd, int level, int name, int value) {
  ::setsockopt(fd, level, name, &value, sizeof(value));
}

Address name_of(int fd, decltype(&::getsockname) which) {
  Address address;
  address.length = sizeof(address.storage);
  if (which(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0) return {};
  return address;
}

}  // namespace

std::string bare(const std::string& address) {
  const bool bracketed = address.size() > 2 && address.front() == '[' && address.back() == ']';
  return bracketed ? address.substr(1, address.size() - 2) : address;
}

Lookup look_up(const std::string& host, uint16_t port) {
  if (host.empty()) return {.addresses = {}, .error = "the address is empty"};
  return look_up(host, port, 0);
}

Lookup look_up_numeric(const std::string& host, uint16_t port) {
  Lookup result;
  const std::string plain = bare(host);
  Address address;
  auto* four = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* six = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (::inet_pton(AF_INET, plain.c_str(), &four->sin_addr) == 1) {
    four->sin_family = AF_INET;
    four->sin_port = htons(port);
    address.length = sizeof(*four);
    result.addresses.push_back(address);
  } else if (::inet_pton(AF_INET6, plain.c_str(), &six->sin6_addr) == 1) {
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(port);
    address.length = sizeof(*six);
    result.addresses.push_back(address);
  } else if (!host.empty()) {
    result = look_up(host, port, AI_NUMERICHOST);  // "fe80::1%eth0"
  }
  result.error.clear();
  return result;
}

std::string text(const Address& address) {
  if (address.family() == AF_INET) {
    char digits[INET_ADDRSTRLEN] = "";
    const auto* four = reinterpret_cast<const sockaddr_in*>(&address.storage);
    return ::inet_ntop(AF_INET, &four->sin_addr, digits, sizeof(digits)) != nullptr ? digits : "";
  }
  char host[NI_MAXHOST] = "";
  if (::getnameinfo(address.get(), address.length, host, sizeof(host), nullptr, 0,
                    NI_NUMERICHOST) != 0) {
    return "";
  }
  constexpr std::string_view kMapped = "::ffff:";
  const std::string_view view = host;
  const bool mapped = view.starts_with(kMapped) && view.find('.') != view.npos;
  return std::string(mapped ? view.substr(kMapped.size()) : view);
}

std::string local_address(int fd) {
  return text(name_of(fd, ::getsockname));
}

std::string peer_address(int fd) {
  return text(name_of(fd, ::getpeername));
}

namespace {

// Port 0 gives one that is free at the first address; somebody may have it at another.
constexpr int kPortTries = 16;

std::vector<Fd> listen_on(const std::string& address, uint16_t port,
                          std::chrono::milliseconds user_timeout, size_t most) {
  const Lookup found = net::look_up(address, port);
  if (found.addresses.empty()) {
    throw Error(
        Exit::environment,
        {.code = "rendezvous.address",
         .what = fmt::format("cannot resolve '{}' to listen on it: {}", address, found.error),
         .help = "give an address of this machine, e.g. its IP, 0.0.0.0 or ::"});
  }
  std::vector<Fd> listeners;
  for (int i = 0; listeners.empty() && i < (port == 0 ? kPortTries : 1); ++i) {
    listeners = listen_at(found.addresses, user_timeout, most);
    if (listeners.empty() && errno != EADDRINUSE) break;
  }
  if (listeners.empty() && errno == EAFNOSUPPORT && bare(address) == "::") {
    return listen_on("0.0.0.0", port, user_timeout, most);  // IPv6 is switched off here
  }
  if (listeners.empty()) throw_cannot_listen(address, port, errno);
  return listeners;
}

Fd listener_at(const Address& at, std::chrono::milliseconds user_timeout) {
  Fd listener(::socket(at.family(), kSocketType, 0));
  if (!listener) return {};
  // Without it the port of a job that has just ended is refused for a minute.
  option(listener.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (at.family() == AF_INET6) {
    const in6_addr& ip = reinterpret_cast<const sockaddr_in6*>(&at.storage)->sin6_addr;
    option(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, IN6_IS_ADDR_UNSPECIFIED(&ip) ? 0 : 1);
  }
  tune(listener.get(), user_timeout);
  tune_for_messages(listener.get());
  if (::bind(listener.get(), at.get(), at.length) == 0 && ::listen(listener.get(), INT_MAX) == 0) {
    return listener;
  }
  const int error = errno;
  listener.reset();
  errno = error;
  return {};
}

void set_port(Address& address, uint16_t port) {
  if (address.family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port = htons(port);
  }
}

}  // namespace

Fd listen_on(const std::string& address, uint16_t port, std::chrono::milliseconds user_timeout) {
  return std::move(listen_on(address, port, user_timeout, 1).front());
}

std::vector<Fd> listen_on_all(const std::string& address, uint16_t port,
                              std::chrono::milliseconds user_timeout) {
  return listen_on(address, port, user_timeout, SIZE_MAX);
}

std::vector<Fd> listen_at(const std::vector<Address>& addresses,
                          std::chrono::milliseconds user_timeout, size_t most) {
  std::vector<Fd> listeners;
  int error = EADDRNOTAVAIL;
  for (Address at : addresses) {
    if (listeners.size() >= most) break;
    if (!listeners.empty()) set_port(at, port_of(listeners.front().get()));
    Fd listener = listener_at(at, user_timeout);
    if (listener) {
      listeners.push_back(std::move(listener));
      continue;
    }
    error = errno;
    // The last: "fe80::..." of which no interface is said.
    if (error == EADDRNOTAVAIL || error == EAFNOSUPPORT || error == EINVAL) continue;
    listeners.clear();
    break;
  }
  errno = error;
  return listeners;
}

uint16_t port_of(int listener) {
  const Address address = name_of(listener, ::getsockname);
  if (address.family() == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port);
}

Fd accept_one(int listener) {
  return Fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

Dial dial(const Address& to, const Address* from, std::chrono::milliseconds user_timeout) {
  Dial result;
  result.socket = Fd(::socket(to.family(), kSocketType, 0));
  if (!result.socket) {
    result.error = errno;
    return result;
  }
  const int fd = result.socket.get();
  tune(fd, user_timeout);
  tune_for_messages(fd);
  if (from != nullptr) {
    option(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    if (::bind(fd, from->get(), from->length) != 0) {
      result.error = errno;
      result.bad_from = true;
      result.socket.reset();
      return result;
    }
  }
  result.error = ::connect(fd, to.get(), to.length) == 0 ? 0 : errno;
  if (result.error == EINPROGRESS) {
    // On this host it is done already.
    pollfd writable = {fd, POLLOUT, 0};
    if (::poll(&writable, 1, 0) == 1) result.error = 0;
  }
  if (result.error == 0) result.error = dial_result(fd);
  if (result.error != 0 && result.error != EINPROGRESS) result.socket.reset();
  return result;
}

int dial_result(int fd) {
  int error = 0;
  socklen_t length = sizeof(error);
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  if (error != 0) return error;
  const Address ours = name_of(fd, ::getsockname);
  const Address theirs = name_of(fd, ::getpeername);
  const bool itself =
      ours.length == theirs.length && std::memcmp(&ours.storage, &theirs.storage, ours.length) == 0;
  return itself ? ECONNREFUSED : 0;
}

void tune(int fd, std::chrono::milliseconds user_timeout) {
  option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  option(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
  option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT,
         static_cast<int>(std::clamp<int64_t>(user_timeout.count(), 1'000, INT_MAX)));
}

void tune_for_messages(int fd) {
  // The kernel counts a stream as thin only where its congestion control lowers ssthresh after a
  // loss. BBR, the default of many clouds, does not: with it the option below does nothing, and a
  // third of the packets lost is silences of a minute. Reno is in every kernel and allowed to all.
  constexpr char kReno[] = "reno";
  ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kReno, sizeof(kReno) - 1);
  option(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1);  // for six repetitions
  option(fd, IPPROTO_TCP, kRtoMaxMs, 1'000);             // and then
  option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 256 << 10);
}

}  // namespace mtl::net
