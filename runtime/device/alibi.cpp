// The slopes of ALiBi.
#include <bit>
#include <cassert>
#include <cmath>
#include <cstdint>

#include "runtime/device/device.h"

namespace mtl {

float alibi_slope(int64_t head, int64_t heads) {
  assert(head >= 0 && head < heads);
  const auto power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(heads)));
  // In units of the steps of 2 * power heads, whose slope number i (from 0) is i + 1 steps down.
  const int64_t steps = head < power ? 2 * (head + 1) : 2 * (head - power) + 1;
  return static_cast<float>(
      std::exp2(-8.0 * static_cast<double>(steps) / static_cast<double>(2 * power)));
}

}  // namespace mtl
