// How fast this machine is right now: the lines that stand beside every benchmark, and the hardware
// numbers of a plan for a CPU.
#pragma once

#include "common/dtype.h"

namespace mtl {

// The best rate (FLOP/s) of a large square matmul (2048^3) repeated for about `seconds`, with the
// threads of the calling thread's parallel regions.
double measure_matmul_rate(DType dtype, double seconds);
// Of a = b + s * c over arrays far larger than the caches, in bytes per second; 12 bytes per
// element are counted (the read that precedes a write is not).
double measure_memory_rate(double seconds);

}  // namespace mtl
