// What the driver's management library says of a GPU while it works: memory, power, clock, load.
// Opened at run time with declarations of our own (nvml.h is not part of the CUDA toolkit); where
// it is not there, nothing is said.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mtl {

// The names are those of nvml.h. Functions return 0 for success; one that the library lacks is
// null.
struct NvmlApi {
  struct Memory {
    unsigned long long total, free, used;
  };
  struct Utilization {
    unsigned gpu, memory;
  };
  using Handle = void*;
  int (*init)() = nullptr;                                      // nvmlInit_v2
  int (*shutdown)() = nullptr;                                  // nvmlShutdown
  int (*handle_by_uuid)(const char*, Handle*) = nullptr;        // nvmlDeviceGetHandleByUUID
  int (*memory_info)(Handle, Memory*) = nullptr;                // nvmlDeviceGetMemoryInfo
  int (*power_usage)(Handle, unsigned* milliwatt) = nullptr;    // nvmlDeviceGetPowerUsage
  int (*power_limit)(Handle, unsigned* milliwatt) = nullptr;    // nvmlDeviceGetEnforcedPowerLimit
  int (*clock)(Handle, int kind, unsigned* mhz) = nullptr;      // nvmlDeviceGetClockInfo
  int (*max_clock)(Handle, int kind, unsigned* mhz) = nullptr;  // nvmlDeviceGetMaxClockInfo
  int (*utilization)(Handle, Utilization*) = nullptr;           // nvmlDeviceGetUtilizationRates
  int (*temperature)(Handle, int kind, unsigned*) = nullptr;    // nvmlDeviceGetTemperature
  // nvmlDeviceGetCurrentClocksEventReasons
  int (*slow_reasons)(Handle, unsigned long long*) = nullptr;
};

struct GpuReading {
  std::optional<int64_t> memory_used, memory_total;  // bytes
  std::optional<double> power_w, power_limit_w;
  std::optional<int> clock_mhz, max_clock_mhz;  // of the multiprocessors
  std::optional<int> busy_percent, temperature_c;
  // Why it does not run at its full clock: throttle_words(); 0 also if unknown.
  uint64_t slowed = 0;
};

class Nvml {
 public:
  // nvmlClocksEventReason*. Not among them: idle (0x1) and clocks that somebody has set (0x2),
  // which are no trouble.
  static constexpr uint64_t kPowerLimit = 0x04, kHardwareSlowdown = 0x08, kSyncBoost = 0x10,
                            kSoftwareHeat = 0x20, kHardwareHeat = 0x40, kPowerBrake = 0x80,
                            kDisplayClock = 0x100;

  // Null where the library, or a driver behind it, is not there.
  static std::unique_ptr<Nvml> open(const char* library = "libnvidia-ml.so.1");
  // Null if init() fails.
  static std::unique_ptr<Nvml> over(const NvmlApi& api);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // `uuid`: "GPU-8f6a...", as CUDA and nvidia-smi have it. All is absent of a GPU that the driver
  // does not know.
  GpuReading read(const std::string& uuid) const;

 private:
  explicit Nvml(const NvmlApi& api) : api_(api) {}
  const NvmlApi api_;
};

// "power limit", "heat (hardware)" ...
std::vector<std::string> throttle_words(uint64_t slowed);

}  // namespace mtl
