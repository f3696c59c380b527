// Did the kernel's out-of-memory killer strike? Best effort: counters of our cgroup (v2 and v1) and
// of the machine, compared with those at the start.
#pragma once

#include <cstdint>
#include <string>

namespace mtl {

// How every sentence of strike() begins.
inline constexpr const char* kOomKiller = "the kernel's out-of-memory killer";

class OomWatch {
 public:
  OomWatch();
  // A sentence if a counter went up since the last call (or the start), else empty.
  std::string strike();

 private:
  std::string cgroup_file_;  // holds a line "oom_kill N"; empty = none found
  int64_t cgroup_ = 0;
  int64_t machine_ = 0;
};

}  // namespace mtl
