#include "launcher/ssh/fleet.h"

#include <algorithm>

#include <sys/resource.h>

#include "launcher/ssh/command_fleet.h"
#include "launcher/ssh/libssh_fleet.h"

namespace mtl {

namespace {

// Two sockets of a pair and one of TCP (or a pipe and a pidfd) for each host, and room for the
// rest.
constexpr rlim_t kDescriptorsPerHost = 4, kDescriptorsElse = 256;

void make_room_for_descriptors(size_t hosts) {
  rlimit limit{};
  const rlim_t wanted = hosts * kDescriptorsPerHost + kDescriptorsElse;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

std::unique_ptr<SshFleet> start_fleet(const FleetOptions& options) {
  make_room_for_descriptors(options.hosts.size());
  if (!options.ssh_command.empty()) return ssh::start_command_fleet(options);
  ssh::Config config(options.config_file);
  std::vector<ssh::Route> routes;
  for (const Host& host : options.hosts) routes.push_back(ssh::route_to(host, config));
  return ssh::start_libssh_fleet(options, std::move(routes), config.warnings());
}

}  // namespace mtl
