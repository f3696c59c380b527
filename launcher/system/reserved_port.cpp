#include "launcher/system/reserved_port.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include <netinet/in.h>
#include <sys/socket.h>

#include <fmt/format.h>

#include "common/error.h"

namespace mtl {

namespace {

namespace fs = std::filesystem;

bool is_process_id(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](unsigned char c) { return std::isdigit(c) != 0; });
}

// Binds, and says with which port; errno as it is on failure.
Fd bound_socket(int family, uint16_t port, uint16_t& got) {
  Fd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return {};
  const int on = 1, off = 0;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_storage address{};
  socklen_t size = 0;
  if (family == AF_INET6) {
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    auto* six = reinterpret_cast<sockaddr_in6*>(&address);
    six->sin6_family = AF_INET6;
    six->sin6_addr = in6addr_any;
    six->sin6_port = htons(port);
    size = sizeof *six;
  } else {
    auto* four = reinterpret_cast<sockaddr_in*>(&address);
    four->sin_family = AF_INET;
    four->sin_addr.s_addr = htonl(INADDR_ANY);
    four->sin_port = htons(port);
    size = sizeof *four;
  }
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) return {};
  size = sizeof address;
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  got = ntohs(family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                 : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
  return fd;
}

// Inodes of the sockets that use the port at this end; those that listen first of all.
std::set<std::string> socket_inodes(uint16_t port) {
  std::set<std::string> listening, others;
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(path);
    std::string line;
    std::getline(in, line);
    while (std::getline(in, line)) {
      std::istringstream words(line);
      std::string index, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
      words >> index >> local >> remote >> state >> queues >> timer >> retransmits >> uid >>
          timeout >> inode;
      const size_t colon = local.rfind(':');
      if (colon == std::string::npos || inode == "0") continue;
      if (std::stoul(local.substr(colon + 1), nullptr, 16) != port) continue;
      (state == "0A" ? listening : others).insert(inode);
    }
  }
  return listening.empty() ? others : listening;
}

std::string command_of(const fs::path& process) {
  std::ifstream in(process / "cmdline", std::ios::binary);
  std::string text;
  std::getline(in, text, '\n');
  std::replace(text.begin(), text.end(), '\0', ' ');
  while (!text.empty() && text.back() == ' ') text.pop_back();
  constexpr size_t kLong = 100;
  return text.size() > kLong ? text.substr(0, kLong) + "..." : text;
}

}  // namespace

std::string port_owner(uint16_t port) {
  const std::set<std::string> inodes = socket_inodes(port);
  if (inodes.empty()) return {};
  std::error_code ignored;
  for (const auto& process : fs::directory_iterator("/proc", ignored)) {
    if (!is_process_id(process.path().filename())) continue;
    std::error_code denied;
    for (const auto& entry : fs::directory_iterator(process.path() / "fd", denied)) {
      const std::string target = fs::read_symlink(entry.path(), denied).string();
      if (!target.starts_with("socket:[")) continue;
      if (inodes.count(target.substr(8, target.size() - 9)) == 0) continue;
      return fmt::format("process {} ({})", process.path().filename().string(),
                         command_of(process.path()));
    }
  }
  return {};
}

namespace {

std::string taken_words(uint16_t port) {
  const std::string owner = port_owner(port);
  return owner.empty() ? fmt::format("port {} is taken by another user's process", port)
                       : fmt::format("port {} is taken by {}", port, owner);
}

}  // namespace

bool ReservedPort::bind(uint16_t port) {
  socket_ = bound_socket(AF_INET6, port, port_);
  // Without IPv6 there is no such socket, or no such address.
  if (!socket_ && errno != EADDRINUSE && errno != EACCES) {
    socket_ = bound_socket(AF_INET, port, port_);
  }
  return static_cast<bool>(socket_);
}

ReservedPort ReservedPort::or_another(uint16_t port, std::string& taken) {
  ReservedPort reserved;
  if (reserved.bind(port)) return reserved;
  if (port == 0 || errno != EADDRINUSE) return ReservedPort(port);
  taken = taken_words(port);
  return ReservedPort(0);
}

ReservedPort::ReservedPort(uint16_t port) {
  if (bind(port)) return;
  const int failure = errno;
  std::string what = port == 0 ? fmt::format("no free TCP port: {}", std::strerror(failure))
                               : fmt::format("port {}: {}", port, std::strerror(failure));
  std::string help = "check that the loopback interface is up (ip address show lo)";
  if (failure == EADDRINUSE && port != 0) {
    what = taken_words(port);
    help = "end that process, take another port, or --main_process_port 0 for a free one";
  } else if (failure == EACCES) {
    help = "ports below 1024 are root's: take a higher one";
  }
  throw Error(Exit::environment, Diagnostic{.code = "launch.port", .what = what, .help = help});
}

}  // namespace mtl
