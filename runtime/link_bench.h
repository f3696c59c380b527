// How fast the ranks of a job add up among themselves: what `mtl topo --bench` runs on each of
// them. All-reduces of several sizes over the transport that training takes, from memory that it
// likes best: shared memory and TCP of the CPU's ranks, NCCL of GPUs.
#pragma once

#include <cstdint>

#include "common/error.h"

namespace mtl {

struct LinkTiming {
  int64_t bytes = 0;   // of the tensor, f32
  double seconds = 0;  // the best of several rounds; the slowest rank's
};
// The factor from size / seconds ("algorithm") to what each rank sends and receives ("bus"),
// whatever the algorithm, as nccl-tests define it: 2 (n-1) / n.
double bus_factor(int ranks);

// Throws Error topo.bench (Exit::usage) for one rank.
void check_bench_ranks(int ranks);
// This process's rank, from the environment that `mtl worker` reads. Rank 0 writes one JSON object
// to MTL_PROGRESS_FD: {"ranks", "device", "timings": [{"bytes", "seconds"}]}. Throws Error:
// topo.bench (Exit::usage: one rank has nobody to talk to), and what devices and transports throw.
Exit run_link_bench();

}  // namespace mtl
