// What the GPUs of a run draw, hold and run at while it trains, by NVML (device/nvml.h). A thread
// reads this rank's GPU once in a while, so that no step waits for the driver; the ranks put their
// newest readings together where a step is logged.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/device/make_device.h"
#include "runtime/device/nvml.h"
#include "runtime/metrics/reporter.h"

namespace mtl {

class GpuWatch {
 public:
  // `nvml` null: there is nothing to read, and no thread.
  GpuWatch(std::unique_ptr<Nvml> nvml, std::string uuid,
           std::chrono::milliseconds every = std::chrono::seconds(1));
  ~GpuWatch();
  GpuWatch(const GpuWatch&) = delete;
  GpuWatch& operator=(const GpuWatch&) = delete;

  // The newest reading, with every reason to run slower since the last time that it was asked for.
  GpuReading latest();

 private:
  void watch(std::chrono::milliseconds every);

  const std::unique_ptr<Nvml> nvml_;
  const std::string uuid_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;
  GpuReading latest_;
  uint64_t slowed_ = 0;  // since latest()
  std::thread thread_;
};

// The watch of a rank's GPU; null for the CPU.
std::unique_ptr<GpuWatch> watch_gpu(const MadeDevice& made);

// Collective: the readings of all ranks, but for what is not said of a run: limits of power, total
// memory, load.
std::vector<GpuReading> gather_readings(Communicator& all_ranks, const GpuReading& mine);

// What is reported of them; a rank whose driver does not say something does not count in it.
GpusReport summary_of(const std::vector<GpuReading>& by_rank);

// What a person should see to, once per rank and reason: GPUs that heat or their supply slows down,
// since every step waits for the slowest. At most four at a time. Code gpu.slowed.
class SlowGpus {
 public:
  std::vector<Diagnostic> news(const std::vector<GpuReading>& by_rank);

 private:
  std::map<int, uint64_t> told_;  // by rank: the bits
};

}  // namespace mtl
