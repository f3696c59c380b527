// Why a GPU cannot be used, in words: pure functions of what CUDA and the system said, so that
// every one of them is tested without a GPU. CUDA's error numbers are those of driver_types.h
// (checked in cuda_errors.cpp).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "common/error.h"

namespace mtl::cuda {

enum CudaErrorNumber : int {
  kMemoryAllocation = 2,
  kInitialization = 3,
  kStubLibrary = 34,
  kInsufficientDriver = 35,
  kDevicesUnavailable = 46,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kNoKernelImage = 209,
  kEccUncorrectable = 214,
  kUnsupportedPtx = 222,
  kOperatingSystem = 304,
  kSystemNotReady = 802,
  kDriverMismatch = 803,
  kCompatNotSupported = 804,
};

// What the system shows of NVIDIA's driver, beside what CUDA says.
struct DriverSigns {
  std::string kernel_module;  // its version, "580.65.06"; empty = /proc/driver/nvidia is not there
  bool control_file = false;  // /dev/nvidiactl exists
  bool may_open = false;      // ... and this process may open it
  bool in_container = false;
  const char* visible = nullptr;  // CUDA_VISIBLE_DEVICES, as it is set
};
DriverSigns driver_signs();

// Why CUDA cannot be started: `error` is what the first call gave, the versions are CUDA's (13000 =
// 13.0; `driver` 0 = there is none).
Diagnostic start_refusal(int error, const std::string& words, int driver, int runtime,
                         const DriverSigns& signs);

// LOCAL_RANK `index` among `count` devices; `mig`: what is visible is a part of a GPU.
Diagnostic index_refusal(int index, int count, bool mig, const char* visible);

// Empty if the library has kernels for this device. `built`: capabilities in ascending order, 80 =
// 8.0; of the last one there is PTX too, which the driver compiles for any newer device.
std::string capability_refusal(const std::string& name, int major, int minor,
                               std::span<const int> built);

// Whether the tensor cores of such a device know FP8: Ada's (8.9) and Hopper's and newer.
constexpr bool multiplies_float8(int major, int minor) {
  return major > 8 || (major == 8 && minor >= 9);
}

// Whether a device by this name is an instance of a divided GPU: CUDA has no other word for it.
bool is_mig(const std::string& name);
// A device's UUID as nvidia-smi and NVML have it: "GPU-8f6a...".
std::string uuid_words(const char (&bytes)[16], bool mig);

struct MemoryFacts {
  std::string name;  // of the device
  bool mig = false;
  int64_t asked = 0, free = 0, total = 0;
};
Diagnostic memory_refusal(const MemoryFacts& facts);
// The host gives no pinned memory of that many bytes.
Diagnostic pinned_refusal(int64_t bytes);

// An error of a later call: what was tried, on which device.
Diagnostic failure(int error, const std::string& words, const std::string& what);

// "13.0" of 13000.
std::string version_words(int version);

}  // namespace mtl::cuda
