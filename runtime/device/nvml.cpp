#include "runtime/device/nvml.h"

#include <dlfcn.h>

namespace mtl {

namespace {

constexpr int kSmClock = 1;         // NVML_CLOCK_SM
constexpr int kGpuTemperature = 0;  // NVML_TEMPERATURE_GPU

template <typename Function>
void find(void* handle, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(handle, name));
}

// The value of a call that writes one number, if it can be had.
template <typename Number, typename Function, typename... Arguments>
std::optional<Number> value_of(Function* function, Arguments... arguments) {
  Number value = 0;
  if (function == nullptr || function(arguments..., &value) != 0) return std::nullopt;
  return value;
}

std::optional<int> whole(std::optional<unsigned> value) {
  if (!value) return std::nullopt;
  return static_cast<int>(*value);
}
std::optional<double> watts(std::optional<unsigned> milliwatt) {
  if (!milliwatt) return std::nullopt;
  return *milliwatt / 1000.0;
}

struct Reason {
  uint64_t bit;
  const char* words;
};
constexpr Reason kReasons[] = {
    {Nvml::kPowerLimit, "power limit"},        {Nvml::kHardwareSlowdown, "hardware slowdown"},
    {Nvml::kSyncBoost, "boost of other GPUs"}, {Nvml::kSoftwareHeat, "heat (software)"},
    {Nvml::kHardwareHeat, "heat (hardware)"},  {Nvml::kPowerBrake, "power brake"},
    {Nvml::kDisplayClock, "display clock"}};

}  // namespace

std::unique_ptr<Nvml> Nvml::open(const char* library) {
  // Stays open: the library has threads of its own.
  void* handle = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return nullptr;
  NvmlApi api;
  find(handle, "nvmlInit_v2", api.init);
  find(handle, "nvmlShutdown", api.shutdown);
  find(handle, "nvmlDeviceGetHandleByUUID", api.handle_by_uuid);
  find(handle, "nvmlDeviceGetMemoryInfo", api.memory_info);
  find(handle, "nvmlDeviceGetPowerUsage", api.power_usage);
  find(handle, "nvmlDeviceGetEnforcedPowerLimit", api.power_limit);
  find(handle, "nvmlDeviceGetClockInfo", api.clock);
  find(handle, "nvmlDeviceGetMaxClockInfo", api.max_clock);
  find(handle, "nvmlDeviceGetUtilizationRates", api.utilization);
  find(handle, "nvmlDeviceGetTemperature", api.temperature);
  find(handle, "nvmlDeviceGetCurrentClocksEventReasons", api.slow_reasons);
  // Its name before driver 535.
  if (api.slow_reasons == nullptr) {
    find(handle, "nvmlDeviceGetCurrentClocksThrottleReasons", api.slow_reasons);
  }
  return over(api);
}

std::unique_ptr<Nvml> Nvml::over(const NvmlApi& api) {
  if (api.init == nullptr || api.handle_by_uuid == nullptr || api.init() != 0) return nullptr;
  return std::unique_ptr<Nvml>(new Nvml(api));
}

Nvml::~Nvml() {
  if (api_.shutdown != nullptr) api_.shutdown();
}

GpuReading Nvml::read(const std::string& uuid) const {
  GpuReading reading;
  NvmlApi::Handle gpu = nullptr;
  if (api_.handle_by_uuid(uuid.c_str(), &gpu) != 0) return reading;
  NvmlApi::Memory memory = {};
  if (api_.memory_info != nullptr && api_.memory_info(gpu, &memory) == 0) {
    reading.memory_used = static_cast<int64_t>(memory.used);
    reading.memory_total = static_cast<int64_t>(memory.total);
  }
  reading.power_w = watts(value_of<unsigned>(api_.power_usage, gpu));
  reading.power_limit_w = watts(value_of<unsigned>(api_.power_limit, gpu));
  reading.clock_mhz = whole(value_of<unsigned>(api_.clock, gpu, kSmClock));
  reading.max_clock_mhz = whole(value_of<unsigned>(api_.max_clock, gpu, kSmClock));
  NvmlApi::Utilization busy = {};
  if (api_.utilization != nullptr && api_.utilization(gpu, &busy) == 0) {
    reading.busy_percent = static_cast<int>(busy.gpu);
  }
  uint64_t known = 0;
  reading.temperature_c = whole(value_of<unsigned>(api_.temperature, gpu, kGpuTemperature));
  for (const Reason& reason : kReasons) known |= reason.bit;
  reading.slowed = known & value_of<unsigned long long>(api_.slow_reasons, gpu).value_or(0);
  return reading;
}

std::vector<std::string> throttle_words(uint64_t slowed) {
  std::vector<std::string> words;
  for (const Reason& reason : kReasons) {
    if ((slowed & reason.bit) != 0) words.emplace_back(reason.words);
  }
  return words;
}

}  // namespace mtl
