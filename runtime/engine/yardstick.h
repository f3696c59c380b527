// What `mfu` is a share of: the dense peak of the ranks' GPUs in the compute type, as the field
// defines it, where the catalogue has all of them; else what the ranks' devices were measured to
// multiply at (calibrate.h), as on every CPU.
#pragma once

#include "common/dtype.h"
#include "runtime/comm/communicator.h"
#include "runtime/device/make_device.h"

namespace mtl {

struct Yardstick {
  double flops = 0;      // FLOP/s of all ranks together
  bool is_peak = false;  // else flops == measured
  double measured = 0;   // of all ranks together
};

// FLOP/s of this rank's GPU by the catalogue (runtime/plan/forecast/gpus.h); 0 for a CPU, a GPU
// that is not in it, and a part of a GPU (MIG).
double catalogue_peak(const MadeDevice& made, DType compute);

// Collective. `measured` and `peak` are this rank's.
Yardstick agree_on_yardstick(Communicator& all_ranks, double measured, double peak);

}  // namespace mtl
