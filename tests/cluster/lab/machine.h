// The first process of one of the lab's machines: makes it look like a machine (host name, mounts,
// addresses, sshd), then reaps, and starts or stops sshd when the warden asks. The head gets no
// sshd: there it only keeps the namespaces.
#pragma once

#include <filesystem>
#include <string>

namespace mtl::test {

struct MachineJob {
  std::filesystem::path dir;  // the lab's
  int machine = 0;
  int machines = 0;
  std::string cgroup_procs;  // empty = none
  // SOCK_SEQPACKET to the warden. Orders: 'G' the cables are plugged in, go on; 'S' start sshd;
  // 'K' stop sshd. Each is answered "ok" or with what went wrong. Its end is the machine's end.
  int control = -1;
};
[[noreturn]] void run_machine(const MachineJob& job);

// No mount made from here on is seen outside, or made outside seen here.
void isolate_mounts();

// Keys, homes, /etc files, ssh and sshd configurations of all machines, below `dir`.
void write_lab_files(const std::filesystem::path& dir, int machines);

std::string machine_name(int machine);
std::string machine_address(int machine, int network, bool ipv6);

}  // namespace mtl::test
