// The machines of a job as a person lists them: --hosts, --hostfile.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"

namespace mtl {

struct Host {
  std::string name;  // as given: a name, an address, an alias of ~/.ssh/config
  std::string user;  // "" = ssh's own choice
  int port = 0;      // 0 = ssh's own choice
  int slots = 0;     // ranks; 0 = not said
  Place place;       // in the hostfile
};

// "a,b:4,user@c[1-8,11]:2,[fd00::1]:4" - a colon gives slots, as in mpirun and accelerate; ranges
// in brackets keep their leading zeros, as in SLURM. `origin`: who gave it, for what is wrong with
// it. Codes: hosts.syntax, hosts.duplicate.
std::vector<Host> parse_hosts(std::string_view text, Diagnostics& diagnostics,
                              const std::string& origin = "--hosts");
// DeepSpeed ("m1 slots=4"), Open MPI ("m1 slots=4 max_slots=8", "m1:4") and MPICH ("m1:4") syntax,
// one host a line, # comments, blank lines; a host that appears again adds its slots. `origin` and
// `named`: what named the file, and where if that was a file. Codes: hosts.syntax, hosts.file,
// hosts.empty.
std::vector<Host> read_hostfile(const std::string& path, Diagnostics& diagnostics,
                                const std::string& origin = "--hostfile",
                                const std::optional<Place>& named = {});
// Whether it is the very host that this is: then no ssh is needed. Where a user or a port is said,
// or another of the loopback's addresses, somebody wants sshd.
bool is_this_host(const Host& host);

}  // namespace mtl
