// Who a rank is on its host: enough to tell whether two ranks can share memory, and whether a rank
// is still alive.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace mtl::shm {

struct Identity {
  std::string host;           // its name, for people
  std::string boot;           // differs between kernels
  std::string pid_namespace;  // differs between containers
  int32_t pid = 0;
  uint64_t start_time = 0;  // of the process, in clock ticks since boot: pids are used again
  std::string cpus;         // that it may run on, as hexadecimal words

  static Identity own();
  std::string encode() const;
  static std::optional<Identity> decode(const std::string& text);
};

// False once the process has ended, also while nobody has reaped it.
bool is_running(int32_t pid, uint64_t start_time);

// How many CPUs are in either set; both as in Identity::cpus.
int count_cpus(const std::string& cpus);
std::string unite_cpus(const std::string& a, const std::string& b);

}  // namespace mtl::shm
