// For tests of short time limits. On a machine that is slow, or was paused, a limit strikes before
// there is what it is to strike: then all is done again with a longer one.
#pragma once

#include <chrono>

namespace mtl::test {

// `attempt` takes the limit and gives whether it was long enough to come where it should strike.
// The last, of more than a minute, counts whatever it gives.
template <typename Attempt>
void with_fitting_limit(std::chrono::milliseconds first, const Attempt& attempt) {
  for (auto limit = first; !attempt(limit) && limit < std::chrono::minutes(1); limit *= 4) continue;
}

}  // namespace mtl::test
