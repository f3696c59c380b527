// NVML: nothing where it is not, and what it says where it is.
#include "runtime/device/nvml.h"

#include <cstring>

#include <doctest/doctest.h>

using namespace mtl;

namespace {

NvmlApi stand_in() {
  NvmlApi api;
  api.init = [] { return 0; };
  api.handle_by_uuid = [](const char* uuid, NvmlApi::Handle* handle) {
    *handle = nullptr;
    return std::strcmp(uuid, "GPU-1") == 0 ? 0 : 6;
  };
  api.memory_info = [](NvmlApi::Handle, NvmlApi::Memory* memory) {
    *memory = {.total = 100, .free = 60, .used = 40};
    return 0;
  };
  api.power_usage = [](NvmlApi::Handle, unsigned* milliwatt) {
    *milliwatt = 345'600;
    return 0;
  };
  api.clock = [](NvmlApi::Handle, int kind, unsigned* mhz) {
    *mhz = kind == 1 ? 1830 : 0;
    return 0;
  };
  api.temperature = [](NvmlApi::Handle, int, unsigned*) { return 3; };
  api.slow_reasons = [](NvmlApi::Handle, unsigned long long* reasons) {
    *reasons = 0x1 | 0x4 | 0x40;
    return 0;
  };
  return api;
}

}  // namespace

TEST_CASE("nvml: where the library is not there nothing is said") {
  CHECK(Nvml::open("libnvidia-ml-that-nobody-has.so.1") == nullptr);
  CHECK(Nvml::over({}) == nullptr);
  NvmlApi api = stand_in();
  api.init = [] { return 9; };  // no driver
  CHECK(Nvml::over(api) == nullptr);
}

TEST_CASE("nvml: what cannot be had is absent and the rest is there") {
  const auto nvml = Nvml::over(stand_in());
  REQUIRE(nvml != nullptr);
  const GpuReading reading = nvml->read("GPU-1");
  CHECK(reading.memory_used == 40);
  CHECK(reading.memory_total == 100);
  REQUIRE(reading.power_w);
  CHECK(*reading.power_w == doctest::Approx(345.6));
  CHECK(reading.clock_mhz == 1830);
  CHECK_FALSE(reading.max_clock_mhz);  // the library lacks it
  CHECK_FALSE(reading.temperature_c);  // the call fails
  CHECK_FALSE(reading.busy_percent);
  CHECK(reading.slowed == (Nvml::kPowerLimit | Nvml::kHardwareHeat));  // idle is no reason
  CHECK(throttle_words(reading.slowed) ==
        std::vector<std::string>{"power limit", "heat (hardware)"});
  CHECK_FALSE(nvml->read("GPU-2").memory_used);
}
