// The fleet whose hosts are reached by libssh.
#pragma once

#include <memory>
#include <vector>

#include "launcher/ssh/dial.h"
#include "launcher/ssh/fleet.h"

namespace mtl::ssh {

// `routes[i]` leads to options.hosts[i].
std::unique_ptr<SshFleet> start_libssh_fleet(const FleetOptions& options, std::vector<Route> routes,
                                             std::vector<Diagnostic> warnings);

}  // namespace mtl::ssh
