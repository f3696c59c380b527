// Where a node's ranks run: which GPU each one sees, which CPUs and memory node it is bound to, how
// many threads it gets. Pure decisions over a description of the node, and the reading of that
// description (hwloc, /dev, /sys, CUDA_VISIBLE_DEVICES).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/error.h"

namespace mtl {

struct NumaNode {
  int os_index = 0;
  std::vector<int> cores;  // CPUs that this process may use there, one per core
  std::vector<int> cpus;   // ... with their hyper-threads
};

struct GpuDevice {
  std::string id;         // as CUDA_VISIBLE_DEVICES takes it: "3" or "GPU-8f6a..." or "MIG-..."
  std::string pci;        // "0000:3b:00.0", "" = unknown
  int numa = -1;          // os_index, -1 = unknown
  std::string uuid = {};  // "GPU-8f6a...", "" = unknown
  std::string name = {};  // "NVIDIA H200", "" = unknown
};

// Of the kernel module: "580.65.06"; "" where there is none.
std::string nvidia_driver_version();

struct NodeHardware {
  int cores = 1;         // that this process may use: mask and quota
  double cpu_quota = 0;  // in cores, 0 = none
  std::vector<NumaNode> numa;
  std::vector<GpuDevice> gpus;  // visible ones, in CUDA's order; the scheduler's mask applied
  std::string driver = {};      // nvidia_driver_version(), where there are any
};
// Without `topology` `numa` stays empty and hwloc is not started (several milliseconds): only who
// binds needs it.
NodeHardware inspect_hardware(bool topology);
// Digits, so few that they fit into an int.
bool is_index(const std::string& text);
// Of the installed GPUs those that a value of CUDA_VISIBLE_DEVICES lets through (nullptr = all), in
// its order, with ids as it names them.
std::vector<GpuDevice> visible_gpus(const std::vector<GpuDevice>& installed, const char* mask);

// Whether these GPUs say that they reach each other's memory and do not: several RTX 40 with a
// driver before 550.40.07, as accelerate knows it.
bool lacks_peer_access(const std::vector<GpuDevice>& gpus, const std::string& driver);

enum class Binding { none, numa, core };  // torchrun's --numa_binding: node, core-complex, ...

struct PlacementRequest {
  int ranks = 1;                // on this node
  bool use_cpu = false;         // no GPU at all
  bool need_gpu = false;        // fewer GPUs than ranks is an error
  std::string gpu_ids = "all";  // accelerate's: "all", "0,2", UUIDs; indices count what is visible
  Binding binding = Binding::none;
  int omp_threads = 0;  // as the user wants it; 0 = cores / ranks
};

struct RankPlacement {
  std::vector<std::string> visible_gpus;  // CUDA_VISIBLE_DEVICES; empty = do not set it
  std::optional<GpuDevice> gpu;           // LOCAL_RANK-th of them
  bool no_peer_access = false;            // NCCL must not use it between this node's GPUs
  std::vector<int> cpus;                  // to bind to; empty = do not bind
  int numa = -1;
  int omp_threads = 1;
};

// Codes: placement.gpu_count (fewer GPUs than ranks, at once and with both numbers),
// placement.gpu_id (unknown or hidden by CUDA_VISIBLE_DEVICES), placement.gpu_duplicate. Adds
// warnings (placement.numa: an empty CPU mask on the GPU's NUMA node, not bound).
std::vector<RankPlacement> place_ranks(const NodeHardware& hardware,
                                       const PlacementRequest& request, Diagnostics& diagnostics);

}  // namespace mtl
