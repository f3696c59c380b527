// How fast this machine is right now: the lines that stand beside every benchmark, and the hardware
// numbers of a plan for a CPU.
#pragma once

#include "common/dtype.h"

namespace mtl {

struct Calibration {
  double matmul_flops_f32 = 0;    // per second
  double matmul_flops_bf16 = 0;   // per second
  double memory_bytes_per_s = 0;  // triad
};

// The best rate of a large square matmul (2048^3) repeated for about `seconds`, with the threads of
// the calling thread's parallel regions.
double measure_matmul_rate(DType dtype, double seconds);
// a = b + s * c over arrays far larger than the caches; 12 bytes per element are counted (the read
// that precedes a write is not).
double measure_memory_rate(double seconds);
// All three, `seconds` for each.
Calibration calibrate(double seconds);

}  // namespace mtl
