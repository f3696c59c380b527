// A terminal that nothing runs in yet: what its programs write is read from the master.
#pragma once

#include <cstdlib>
#include <fcntl.h>
#include <string>

#include <doctest/doctest.h>

#include "common/files.h"

namespace mtl::test {

struct NewTerminal {
  NewTerminal() : master(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
    REQUIRE(master);
    REQUIRE(grantpt(master.get()) == 0);
    REQUIRE(unlockpt(master.get()) == 0);
    name = ptsname(master.get());
  }
  Fd master;
  std::string name;
};

}  // namespace mtl::test
