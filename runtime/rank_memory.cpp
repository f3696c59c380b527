#include "runtime/rank_memory.h"

#include <algorithm>
#include <fstream>
#include <unistd.h>

#include <fmt/format.h>

#include "common/error.h"
#include "runtime/device/load_cuda.h"
#include "runtime/device/make_device.h"
#include "runtime/metrics/format.h"

namespace mtl {

int64_t machine_memory_bytes() {
  int64_t bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  for (const char* limit :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream in(limit);
    int64_t value = 0;
    if (in >> value && value > 0) bytes = std::min(bytes, value);  // "max" is no number
  }
  return bytes;
}

namespace {

bool chooses_gpu(int local_ranks, bool use_cpu) {
  DeviceSigns signs = device_signs();
  signs.use_cpu |= use_cpu;
  return choose_device(signs, {.local_rank = 0, .world = local_ranks}).gpu;
}

}  // namespace

bool arenas_on_host(int local_ranks, bool use_cpu) {
  try {
    return !chooses_gpu(local_ranks, use_cpu);
  } catch (const Error&) {
    return false;
  }
}

std::optional<RankMemory> rank_memory(int local_ranks, bool use_cpu) {
  try {
    if (!chooses_gpu(local_ranks, use_cpu)) {
      const auto all = static_cast<double>(machine_memory_bytes());
      return RankMemory{static_cast<int64_t>(0.8 * all / local_ranks),
                        fmt::format("8/10 of this machine's {} for {} rank{}", human_bytes(all),
                                    local_ranks, local_ranks == 1 ? "" : "s"),
                        true};
    }
    const CudaFacts facts = load_cuda().facts(false);
    if (facts.devices.empty()) return std::nullopt;
    int64_t least = facts.devices.front().memory_bytes;
    for (const CudaDeviceFacts& gpu : facts.devices) least = std::min(least, gpu.memory_bytes);
    const auto bytes = static_cast<double>(least);
    return RankMemory{static_cast<int64_t>(0.9 * bytes),
                      fmt::format("9/10 of the GPU's {}", human_bytes(bytes)), false};
  } catch (const Error&) {
    return std::nullopt;  // who starts the ranks says why no device can be used
  }
}

}  // namespace mtl
