// How much memory a rank of this machine may take.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace mtl {

// What this machine, or the control group that the job is in, can give at most.
int64_t machine_memory_bytes();

// Whether the ranks' arenas lie in the host's memory, or else in that of GPUs, which they do not if
// told to leave them alone (`use_cpu`). Not where no device can be used: who starts the ranks says
// why.
bool arenas_on_host(int local_ranks, bool use_cpu);

struct RankMemory {
  int64_t bytes = 0;  // for the arena, after the margin
  std::string words;  // "9/10 of the GPU's 80.0 GiB", "8/10 of this machine's 31.2 GiB for 2 ranks"
  bool host = false;  // of the host: what lies there beside an arena counts, too
};
// The margin is a tenth of a GPU (contexts, NCCL, what lies between allocations) and a fifth of a
// machine (programs, buffers of the transport, the corpus). Nothing where no device can be asked.
// `local_ranks` >= 1.
std::optional<RankMemory> rank_memory(int local_ranks, bool use_cpu);

}  // namespace mtl
