// This machine's addresses: which one others should use, with --interface or without.
#pragma once

#include <string>
#include <vector>

namespace mtl {

struct LocalAddress {
  std::string interface;
  std::string address;  // numeric
  bool is_loopback = false;
  bool is_ipv6 = false;
};

// Of all interfaces that are up, without IPv6 link-local ones; IPv4 first, as the system lists
// them.
std::vector<LocalAddress> local_addresses();

// Those of `wanted`: an interface's name, an address, or a network (10.0.0.0/8, fd00::/16). Throws
// Error "launch.interface" (Exit::environment) with what there is, if nothing fits.
std::vector<LocalAddress> addresses_of(const std::string& wanted);

// Pure: whether a numeric address lies in a network such as "10.0.0.0/8".
bool in_network(const std::string& address, const std::string& network);

// The local address that the system would use towards a numeric one; "" if there is no route.
std::string address_towards(const std::string& peer);

std::string host_name();

// The same for two processes that surely are on one machine: one kernel, one view of its processes,
// files and network. A container, which may have GPUs of its own even where it shares the rest with
// its host, is another machine, and so is a network namespace. "" if that cannot be known.
std::string machine_identity();

// Whether somebody who writes this means this machine alone: localhost, 127.0.0.1, ::1.
bool is_loopback(const std::string& address);
// Whether a name leads to a loopback address here, as a machine's own name does on Debian
// (127.0.1.1 in /etc/hosts): others cannot reach that.
bool resolves_to_loopback(const std::string& name);

}  // namespace mtl
