#include "rendezvous/network.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <ifaddrs.h>
#include <memory>
#include <netdb.h>
#include <optional>
#include <unistd.h>

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <fmt/format.h>

#include "common/error.h"
#include "common/files.h"
#include "common/text.h"

namespace mtl {

namespace {

// The bits of a numeric address: 4 or 16 bytes.
std::optional<std::vector<uint8_t>> bits_of(const std::string& address) {
  std::vector<uint8_t> bits(4);
  if (inet_pton(AF_INET, address.c_str(), bits.data()) == 1) return bits;
  bits.resize(16);
  if (inet_pton(AF_INET6, address.c_str(), bits.data()) == 1) return bits;
  return {};
}

std::string text_of(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* bits =
      address->sa_family == AF_INET
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr)
          : &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  return inet_ntop(address->sa_family, bits, text.data(), text.size()) ? text.data() : "";
}

}  // namespace

std::vector<LocalAddress> local_addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  std::vector<LocalAddress> found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    if (family == AF_INET6 &&
        IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr)) {
      continue;
    }
    found.push_back({.interface = entry->ifa_name,
                     .address = text_of(entry->ifa_addr),
                     .is_loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0,
                     .is_ipv6 = family == AF_INET6});
  }
  std::stable_sort(found.begin(), found.end(), [](const LocalAddress& a, const LocalAddress& b) {
    return a.is_ipv6 < b.is_ipv6;
  });
  return found;
}

bool in_network(const std::string& address, const std::string& network) {
  const size_t slash = network.find('/');
  if (slash == std::string::npos) return false;
  const auto bits = bits_of(address);
  const auto base = bits_of(network.substr(0, slash));
  const auto length = to_number<uint64_t>(network.substr(slash + 1));
  if (!bits || !base || !length) return false;
  if (bits->size() != base->size() || *length > 8 * bits->size()) return false;
  for (size_t i = 0; i < *length; ++i) {
    const int shift = 7 - static_cast<int>(i % 8);
    if ((((*bits)[i / 8] ^ (*base)[i / 8]) >> shift & 1) != 0) return false;
  }
  return true;
}

std::vector<LocalAddress> addresses_of(const std::string& wanted) {
  const std::vector<LocalAddress> all = local_addresses();
  std::vector<LocalAddress> found;
  std::string there;
  for (const LocalAddress& local : all) {
    if (local.interface == wanted || local.address == wanted || in_network(local.address, wanted)) {
      found.push_back(local);
    }
    there += fmt::format("{}{} ({})", there.empty() ? "" : ", ", local.address, local.interface);
  }
  if (found.empty()) {
    throw Error(
        Exit::environment,
        {.code = "launch.interface",
         .what = fmt::format("{} has no interface, address or network '{}'", host_name(), wanted),
         .notes = {"there is: " + there},
         .help = "--interface takes a name (eth0), an address or a network (10.0.0.0/8)"});
  }
  return found;
}

std::string address_towards(const std::string& peer) {
  const bool is_ipv6 = peer.find(':') != std::string::npos;
  // Connecting a datagram socket sends nothing; it only asks for the route.
  const Fd fd(socket(is_ipv6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage address{};
  socklen_t size = sizeof(sockaddr_in);
  address.ss_family = AF_INET;
  if (is_ipv6) {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(9);
    size = sizeof v6;
    if (inet_pton(AF_INET6, peer.c_str(), &v6.sin6_addr) != 1) return "";
  } else {
    auto& v4 = reinterpret_cast<sockaddr_in&>(address);
    v4.sin_port = htons(9);
    if (inet_pton(AF_INET, peer.c_str(), &v4.sin_addr) != 1) return "";
  }
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (!fd || connect(fd.get(), generic, size) != 0) return "";
  size = sizeof address;
  return getsockname(fd.get(), generic, &size) == 0 ? text_of(generic) : "";
}

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || in_network(address, "127.0.0.0/8");
}

bool resolves_to_loopback(const std::string& name) {
  addrinfo* list = nullptr;
  if (getaddrinfo(name.c_str(), nullptr, nullptr, &list) != 0) return false;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, freeaddrinfo);
  return list != nullptr && is_loopback(text_of(list->ai_addr));
}

std::string machine_identity() {
  std::string identity = first_line("/proc/sys/kernel/random/boot_id");
  if (identity.empty()) return {};
  for (const char* space : {"mnt", "net", "pid", "uts"}) {
    std::error_code error;
    const auto link = std::filesystem::read_symlink(fmt::format("/proc/self/ns/{}", space), error);
    if (error) return {};
    identity += ' ' + link.string();
  }
  // Virtual machines that were woken from one image are alike in all of it, but not in these.
  std::vector<std::string> addresses;
  for (const LocalAddress& local : local_addresses()) {
    if (!local.is_loopback) addresses.push_back(local.address);
  }
  std::sort(addresses.begin(), addresses.end());
  for (const std::string& address : addresses) identity += ' ' + address;
  return identity;
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

}  // namespace mtl
