#include "runtime/device/cuda/cuda_errors.h"

#include <cstdlib>
#include <string_view>

#include "runtime/device/cuda/refusals.h"

namespace mtl::cuda {

static_assert(kMemoryAllocation == static_cast<int>(cudaErrorMemoryAllocation) &&
              kInitialization == static_cast<int>(cudaErrorInitializationError) &&
              kStubLibrary == static_cast<int>(cudaErrorStubLibrary) &&
              kInsufficientDriver == static_cast<int>(cudaErrorInsufficientDriver) &&
              kDevicesUnavailable == static_cast<int>(cudaErrorDevicesUnavailable) &&
              kNoDevice == static_cast<int>(cudaErrorNoDevice) &&
              kInvalidDevice == static_cast<int>(cudaErrorInvalidDevice) &&
              kNoKernelImage == static_cast<int>(cudaErrorNoKernelImageForDevice) &&
              kEccUncorrectable == static_cast<int>(cudaErrorECCUncorrectable) &&
              kUnsupportedPtx == static_cast<int>(cudaErrorUnsupportedPtxVersion) &&
              kOperatingSystem == static_cast<int>(cudaErrorOperatingSystem) &&
              kSystemNotReady == static_cast<int>(cudaErrorSystemNotReady) &&
              kDriverMismatch == static_cast<int>(cudaErrorSystemDriverMismatch) &&
              kCompatNotSupported == static_cast<int>(cudaErrorCompatNotSupportedOnDevice));

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw Error(Exit::run_failed, failure(static_cast<int>(error), cudaGetErrorString(error), what));
}

void* gpu_memory(size_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes);
  if (error != cudaErrorMemoryAllocation) {
    check(error, "allocating memory");
    return memory;
  }
  cudaGetLastError();  // it is told here and shall not be found by the next kernel
  size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  int device = 0;
  cudaDeviceProp properties{};
  check(cudaGetDevice(&device), "finding the current GPU");
  check(cudaGetDeviceProperties(&properties, device), "asking for a GPU's properties");
  throw Error(Exit::out_of_memory, memory_refusal({.name = properties.name,
                                                   .mig = is_mig(properties.name),
                                                   .asked = static_cast<int64_t>(bytes),
                                                   .free = static_cast<int64_t>(free),
                                                   .total = static_cast<int64_t>(total)}));
}

void refuse_start(cudaError_t error) {
  int driver = 0, runtime = 0;
  // Without a driver this succeeds and says 0.
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  cudaRuntimeGetVersion(&runtime);
  throw Error(Exit::environment, start_refusal(static_cast<int>(error), cudaGetErrorString(error),
                                               driver, runtime, driver_signs()));
}

int start_cuda() {
  // Streams share the queues of the hardware, eight by default: one that waits for a peer would
  // hold up another rank's way to it. CUDA reads it when it starts.
  constexpr const char* kQueues = "CUDA_DEVICE_MAX_CONNECTIONS";
  const char* said = std::getenv(kQueues);
  if (said == nullptr || std::string_view(said) != "32") setenv(kQueues, "32", 1);
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) refuse_start(error);
  if (count == 0) refuse_start(cudaErrorNoDevice);
  return count;
}

}  // namespace mtl::cuda
