// The process that owns a lab: it makes the namespaces, their cables and first processes, carries
// out the verbs that come over a socket, and takes everything down when that socket closes.
#pragma once

#include <filesystem>
#include <vector>

#include <sys/types.h>

namespace mtl::test {

struct WardenJob {
  std::filesystem::path dir;  // made by the caller, holds what write_lab_files() wrote
  int machines = 0;
  int socket = -1;  // SOCK_SEQPACKET; a request per packet, each answered "ok ..." or "error ..."
};

// Called in a fresh child. Reports "ok PID0 PID1 ..." (first processes, as seen from outside) and
// the cgroups' names when all machines are up.
[[noreturn]] void run_warden(const WardenJob& job);

// Removes what labs left whose warden was killed.
void sweep_dead_labs();

// Processes of the same pid namespace (or of the same network namespace) as `init`, without it.
std::vector<pid_t> processes_beside(pid_t init, const char* space);

}  // namespace mtl::test
