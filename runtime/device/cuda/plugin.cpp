// What libmtl_cuda.so gives to mtl (cuda_plugin.h): its one symbol, and the GPUs that CUDA shows.
#include <cuda_runtime_api.h>

#include <fmt/format.h>

#include "common/version.h"
#include "runtime/device/cuda/cuda_device.h"
#include "runtime/device/cuda/cuda_errors.h"
#include "runtime/device/cuda/lt_matmul.h"
#include "runtime/device/cuda/refusals.h"
#include "runtime/device/cuda_plugin.h"

namespace mtl {

// runtime/comm/nccl/cuda_world.cpp, which is linked into the same library.
std::unique_ptr<CommWorld> make_nccl_world(Store& store, const WorldOptions& options,
                                           Device& device, const std::string& crash_dir);

namespace cuda {

namespace {

CudaDeviceFacts device_facts(int index) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), "asking for a GPU's properties");
  CudaDeviceFacts facts;
  facts.name = properties.name;
  facts.mig = is_mig(facts.name);
  facts.uuid = uuid_words(properties.uuid.bytes, facts.mig);
  facts.pci = fmt::format("{:04x}:{:02x}:{:02x}.0", properties.pciDomainID, properties.pciBusID,
                          properties.pciDeviceID);
  facts.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  facts.major = properties.major;
  facts.minor = properties.minor;
  facts.multiprocessors = properties.multiProcessorCount;
  static constexpr int kBuilt[] = {MTL_CUDA_ARCHITECTURES};
  facts.refusal = capability_refusal(facts.name, facts.major, facts.minor, kBuilt);
  return facts;
}

// The GPU that the thread works on stays the same: an engine of ours may be there already.
void ask_free_memory(int index, CudaDeviceFacts& facts) {
  size_t free = 0, total = 0;
  int current = 0;
  check(cudaGetDevice(&current), "finding the current GPU");
  cudaError_t error = cudaSetDevice(index);
  if (error == cudaSuccess) error = cudaMemGetInfo(&free, &total);
  if (error != cudaSuccess) cudaGetLastError();  // it is told here, not by the next kernel
  if (cudaSetDevice(current) != cudaSuccess) cudaGetLastError();
  if (error == cudaSuccess) {
    facts.free_bytes = static_cast<int64_t>(free);
  } else if (facts.refusal.empty()) {
    facts.refusal = cudaGetErrorString(error);
  }
}

CudaFacts facts(bool free_memory) {
  const int count = start_cuda();
  CudaFacts facts;
  check(cudaDriverGetVersion(&facts.driver), "asking for the driver's version");
  check(cudaRuntimeGetVersion(&facts.runtime), "asking for the runtime's version");
  facts.driver_name = driver_signs().kernel_module;
  for (int i = 0; i < count; ++i) {
    facts.devices.push_back(device_facts(i));
    if (free_memory) ask_free_memory(i, facts.devices.back());
  }
  return facts;
}

std::unique_ptr<Device> make_device(int index) {
  const CudaFacts all = facts(false);
  const auto count = static_cast<int>(all.devices.size());
  const DriverSigns signs = driver_signs();
  if (index < 0 || index >= count) {
    throw Error(Exit::environment,
                index_refusal(index, count, all.devices.front().mig, signs.visible));
  }
  const CudaDeviceFacts& own = all.devices[static_cast<size_t>(index)];
  if (!own.refusal.empty()) {
    throw Error(Exit::environment, {.code = "gpu.capability",
                                    .what = own.refusal,
                                    .help = "build mtl for it (cmake -DMTL_CUDA_ARCHITECTURES=..., "
                                            "80 at least); MTL_DEVICE=cpu (mtl launch --cpu) runs "
                                            "on the CPU"});
  }
  const std::string driver =
      all.driver_name.empty() ? "for CUDA " + version_words(all.driver) : all.driver_name;
  return make_cuda_device(index, fmt::format("cuda:{} {}, {} GiB, sm_{}{}, driver {}, cuBLASLt {}",
                                             index, own.name, own.memory_bytes >> 30, own.major,
                                             own.minor, driver, LtMatmul::version()));
}

void* allocate_shared(size_t bytes) {
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped),
        "allocating memory that the host and GPUs share");
  return memory;
}
void free_shared(void* memory) {
  check(cudaFreeHost(memory), "freeing memory that the host and GPUs share");
}

}  // namespace

}  // namespace cuda

}  // namespace mtl

extern "C" __attribute__((visibility("default"))) const mtl::CudaPlugin* mtl_cuda_plugin() {
  static const std::string version = mtl::version();
  static const mtl::CudaPlugin plugin = {.version = version.c_str(),
                                         .facts = mtl::cuda::facts,
                                         .make_device = mtl::cuda::make_device,
                                         .make_nccl_world = &mtl::make_nccl_world,
                                         .choose_attention = mtl::cuda::choose_attention,
                                         .allocate_shared = mtl::cuda::allocate_shared,
                                         .free_shared = mtl::cuda::free_shared};
  return &plugin;
}
