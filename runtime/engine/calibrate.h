// How fast this device multiplies matrices right now: the yardstick of `mfu` where there is no
// better (yardstick.h).
#pragma once

#include "runtime/device/device.h"

namespace mtl {

// FLOP/s of a square matmul of type `dtype`, the best of a few within about `seconds`. Ranks that
// share a machine measure together.
double measured_matmul_rate(Device& device, DType dtype, double seconds);

}  // namespace mtl
