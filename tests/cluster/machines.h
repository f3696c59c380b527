// A lab for a test case. Where none can be made the test fails, and says why in one line; with
// MTL_WITHOUT_CLUSTER=1 in the environment it is skipped, which the runner shows as such.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include <doctest/doctest.h>

#include "cluster/lab/lab.h"

namespace mtl::test {

// What ctest knows as "skipped" (SKIP_RETURN_CODE in tests/CMakeLists.txt).
inline constexpr int kSkipped = 77;

inline void need_lab() {
  const char* without = std::getenv("MTL_WITHOUT_CLUSTER");
  if (without != nullptr && std::string_view(without) == "1") {
    std::puts("skipped: MTL_WITHOUT_CLUSTER=1, so nothing is tested on several machines");
    std::exit(kSkipped);
  }
  const std::string reason = Lab::missing();
  if (reason.empty()) return;
  FAIL("no machines to test on: ", reason,
       " (run as root with namespaces, or set MTL_WITHOUT_CLUSTER=1 to skip)");
}

// The usual fixture.
struct Machines {
  Machines() { need_lab(); }
};

}  // namespace mtl::test
