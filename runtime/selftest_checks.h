// What `mtl test` has the ranks do: every operation of a group with known results, the speed of its
// links, and a small training.
#pragma once

#include <vector>

#include "runtime/comm/communicator.h"

namespace mtl {

// All operations of `group` (collective) in one type. Throws Error "selftest.collective" naming the
// first wrong element. `spoil`: has this rank see one, for the tests.
void verify_operations(Communicator& group, DType dtype, bool spoil);

struct LinkSpeed {
  double latency_s = 0;    // of an all_reduce of 4 bytes
  double bytes_per_s = 0;  // of an all_reduce of 8 MiB
  double link_s = 0;       // for 4 MiB from the rank before, while as much goes to the next
};
// Collective; the best of several rounds. `links`: also link_s.
LinkSpeed measure_group(Communicator& group, bool links);

// The losses of a small GPT that learns a built-in text, `batch` sequences per step, with dp =
// world / tp. Collective.
std::vector<double> tiny_losses(CommWorld& world, int batch, int tp);

}  // namespace mtl
