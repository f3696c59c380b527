// The fleet whose hosts are reached by one OpenSSH process each (or a wrapper of it): for settings
// that libssh does not know. Slower and bigger, but the same events and the same codes.
#pragma once

#include <memory>

#include "launcher/ssh/fleet.h"

namespace mtl::ssh {

std::unique_ptr<SshFleet> start_command_fleet(const FleetOptions& options);

// What an OpenSSH client that ended before the magic line said, as one of the fleet's codes.
// `exit_code` is that of the client: 255 is its own failure, all else the command's.
Diagnostic classify(const Host& host, const FleetOptions& options, int exit_code,
                    const std::string& noise, const std::string& errors);

}  // namespace mtl::ssh
