// What the start on one host comes to, by each way to it.
#pragma once

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "common/error.h"
#include "common/files.h"
#include "launcher/ssh/fleet.h"
#include "ssh/loopback.h"

namespace mtl::test {

// Of --ssh_command: libssh, and OpenSSH as a program.
inline const char* const kWays[] = {"", "ssh"};

// What is said of the only host, "" where nothing went wrong; its code, "started" or "ended".
inline std::string failure(const FleetOptions& options, std::string* code) {
  const auto fleet = start_fleet(options);
  const FleetEvent event = std::move(first_events(*fleet, 1)[0]);
  *code = event.kind == FleetEvent::failed    ? event.error->code
          : event.kind == FleetEvent::started ? "started"
                                              : "ended";
  return event.error ? render(*event.error) : "";
}

// Of one host of the site, by the way of --ssh_command.
inline std::string failure(const Site& site, const std::string& way, std::string* code,
                           const std::string& host = "m") {
  FleetOptions options = site.options({host}, "");
  options.ssh_command = way;
  return failure(options, code);
}

// A port of 127.0.0.1 that takes connections and says nothing, or takes none.
struct SilentServer {
  Fd socket_;
  int port = 0;
  explicit SilentServer(bool listening) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
      throw std::system_error(errno, std::generic_category(), "bind");
    }
    getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port = ntohs(address.sin_port);
    if (listening) listen(socket_.get(), 16);
  }
};

}  // namespace mtl::test
