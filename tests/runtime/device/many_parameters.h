// Many parameters as they lie in a rank's buffers, for tests of what takes them all at once.
#pragma once

#include <cstring>
#include <vector>

#include "runtime/device/ops_test.h"

namespace mtl::test {

// Parameters as they lie in a rank's buffers: with gaps, across borders of cells, several in one,
// at odd places; the weights and the state of a shard begin elsewhere, and so do second moments.
inline const std::vector<HeldPieces::Part> kParts = {
    {.offset = 4, .count = 1000, .state = 4},
    {.offset = 1004, .count = 3, .state = 1004},
    {.offset = 1007, .count = 9, .state = 1007, .decays = false},
    {.offset = 2048, .count = 10000, .state = 2048, .weight = 2056, .second = 2052},
    {.offset = 16384, .count = 4096, .state = 12288, .weight = 16393},
    {.offset = 20481,
     .count = 8191,
     .state = 16386,
     .decays = false,
     .weight = 20500,
     .second = 16385},
    {.offset = 28800, .count = 1, .state = 24577, .weight = 28850}};
inline constexpr int64_t kFlat = 28900, kState = 24700;

// The elements of a part, in buffers of their own.
inline Tensor held_part(Held& held, const Tensor& flat, int64_t first) {
  std::memcpy(held.view.data, flat.slice(first, held.size()).data,
              static_cast<size_t>(held.view.bytes()));
  return held.view;
}

}  // namespace mtl::test
