// Kernels as nvcc has made them: what its launch stubs call, for which the machine of tests/ptx
// runs the PTX of the fat binaries. With it the very objects of libmtl_cuda.so are a library.
//
// The environment says how (each has a default):
//   MTL_PTX_SEED     of the order of warps, blocks and copies (1); each launch has another one
//   MTL_PTX_BLOCKS   blocks at once (2: as many as the GPU of gpu.h has multiprocessors)
//   MTL_PTX_WATCH    who looks on, of races,counts (tests/ptx/races.h, counts.h). The first race is
//                    the end of the GPU
//   MTL_PTX_REPORT   a file for what they have seen, at the end of the process; races too
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime_api.h>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "host_cuda/gpu.h"
#include "host_cuda/kernel_watchers.h"
#include "host_cuda/memory.h"
#include "ptx/fat_binary.h"
#include "ptx/machine.h"

using namespace mtl::host_cuda;
namespace ptx = mtl::ptx;

namespace {

int said(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

// A fat binary. Its text is taken apart when a kernel of it is asked for: megabytes, and most
// programs use a few of them.
struct Binary {
  const void* registered = nullptr;
  std::once_flag once;
  std::shared_ptr<const ptx::Module> module;
  cudaError_t error = cudaSuccess;

  void load();
};

void Binary::load() {
  std::call_once(once, [this] {
    try {
      const std::vector<std::string> texts = ptx::texts_of(registered);
      const std::string* const text = ptx::text_for(texts, capability());
      error = cudaErrorNoKernelImageForDevice;
      if (text == nullptr) return;
      error = cudaErrorInvalidPtx;
      module = std::make_shared<const ptx::Module>(*text);
      error = cudaSuccess;
    } catch (const std::exception& wrong) {
      error = cudaErrorInvalidPtx;
      std::fprintf(stderr, "host cuda: %s\n", wrong.what());
    }
  });
}

// As __cudaRegisterFunction tells of it; its address is the cudaKernel_t.
struct Registered {
  Binary* binary = nullptr;
  std::string name;
  std::atomic<int> allowed = -1;  // bytes of dynamic shared memory; -1: nobody has said
};

// Threads may launch until the process has ended.
struct All {
  std::mutex mutex;
  std::vector<std::unique_ptr<Binary>> binaries;
  std::map<const void*, std::unique_ptr<Registered>> kernels;
};
All& all() {
  static All& everything = *new All;
  return everything;
}

Registered* find(const void* function) {
  const std::scoped_lock lock(all().mutex);
  const auto found = all().kernels.find(function);
  return found == all().kernels.end() ? nullptr : found->second.get();
}

struct Launch {
  dim3 grid, block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};
thread_local std::vector<Launch> launches;  // that wait for their stubs

// CUDA tells a program no more than a number.
cudaError_t refuse(cudaError_t error, const Registered& kernel, const std::string& why) {
  std::fprintf(stderr, "host cuda: %s cannot be launched: %s\n", kernel.name.c_str(), why.c_str());
  return fails_with(error);
}

constexpr size_t kSharedBytesUnasked = 48 << 10;
size_t static_bytes_of(const ptx::Kernel& kernel) {
  return kernel.dynamic_shared - ptx::kReservedShared;  // with what aligns the dynamic ones
}

// Null: `error` says why.
const ptx::Kernel* kernel_of(const Registered& registered, cudaError_t& error) {
  registered.binary->load();
  error = registered.binary->error;
  if (error != cudaSuccess) {
    refuse(error, registered,
           error == cudaErrorNoKernelImageForDevice
               ? fmt::format("its fat binary has no PTX for capability {}", capability())
               : "its PTX cannot be read");
    return nullptr;
  }
  if (!registered.binary->module->has(registered.name)) {
    error = refuse(cudaErrorInvalidDeviceFunction, registered, "its PTX does not have it");
    return nullptr;
  }
  try {
    return &registered.binary->module->kernel(registered.name);
  } catch (const std::exception& wrong) {
    error = refuse(cudaErrorInvalidPtx, registered, wrong.what());
    return nullptr;
  }
}

cudaError_t launch(const Registered& registered, const Launch& asked, void** arguments) {
  cudaError_t error = cudaSuccess;
  const ptx::Kernel* const kernel = kernel_of(registered, error);
  if (kernel == nullptr) return error;
  const dim3 grid = asked.grid, block = asked.block;
  const ptx::Dim3 threads = {block.x, block.y, block.z};
  const ptx::Dim3 blocks = {grid.x, grid.y, grid.z};
  if (blocks.count() == 0 || grid.x > 0x7fffffff || grid.y > 0xffff || grid.z > 0xffff ||
      threads.count() == 0 || block.x > 1024 || block.y > 1024 || block.z > 64 ||
      threads.count() > 1024) {
    return refuse(cudaErrorInvalidConfiguration, registered,
                  fmt::format("a grid of {} x {} x {}, blocks of {} x {} x {}", grid.x, grid.y,
                              grid.z, block.x, block.y, block.z));
  }
  if (threads.count() > kernel->most_threads) {
    return refuse(cudaErrorLaunchOutOfResources, registered,
                  fmt::format("{} threads, and it is compiled for {}", threads.count(),
                              kernel->most_threads));
  }
  const int raised = registered.allowed;
  const size_t allowed =
      raised >= 0 ? static_cast<size_t>(raised) : kSharedBytesUnasked - static_bytes_of(*kernel);
  if (asked.shared_bytes > allowed) {
    return refuse(cudaErrorInvalidValue, registered,
                  fmt::format("{} bytes of dynamic shared memory, and {} are allowed",
                              asked.shared_bytes, allowed));
  }
  static std::atomic<unsigned> number = 0;
  static const auto seed = static_cast<unsigned>(said("MTL_PTX_SEED", 1));
  static const auto at_once = static_cast<unsigned>(said("MTL_PTX_BLOCKS", 2));
  ptx::Launch made;
  made.kernel = kernel;
  made.grid = blocks;
  made.block = threads;
  made.dynamic_shared = asked.shared_bytes;
  made.parameters.resize(kernel->parameter_bytes);
  for (size_t i = 0; i < kernel->parameters.size(); ++i) {
    const ptx::Parameter& parameter = kernel->parameters[i];
    std::memcpy(&made.parameters[parameter.offset], arguments[i], parameter.bytes);
  }
  made.has = knows;
  made.resident = at_once;
  made.seed = seed + ++number;
  asked.stream->enqueue([module = registered.binary->module, made] { run_watched(module, made); });
  return cudaSuccess;
}

}  // namespace

extern "C" {

// --- at the start of the program, by each object

void** __cudaRegisterFatBinary(void* binary) {
  const std::scoped_lock lock(all().mutex);
  Binary& made = *all().binaries.emplace_back(std::make_unique<Binary>());
  made.registered = binary;
  return reinterpret_cast<void**>(&made);
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void** binary, const char* function, char*, const char* name, int,
                            uint3*, uint3*, dim3*, dim3*, int*) {
  const std::scoped_lock lock(all().mutex);
  auto made = std::make_unique<Registered>();
  made->binary = reinterpret_cast<Binary*>(binary);
  made->name = name;
  all().kernels[function] = std::move(made);
}

// --- kernel<<<grid, block, shared, stream>>>(...): pushed by the caller, taken by the stub

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                     CUstream_st* stream) {
  launches.push_back({grid, block, shared_bytes, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes,
                                       void* stream) {
  if (launches.empty()) return fails_with(cudaErrorMissingConfiguration);
  *grid = launches.back().grid;
  *block = launches.back().block;
  *shared_bytes = launches.back().shared_bytes;
  *static_cast<cudaStream_t*>(stream) = launches.back().stream;
  launches.pop_back();
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(find(function));
  return *kernel == nullptr ? fails_with(cudaErrorInvalidDeviceFunction) : cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               size_t shared_bytes, cudaStream_t stream) {
  if (kernel == nullptr) return fails_with(cudaErrorInvalidDeviceFunction);
  if (stream == nullptr) {
    throw std::logic_error("a kernel in the default stream, which nothing of ours uses");
  }
  return launch(*reinterpret_cast<Registered*>(kernel), {grid, block, shared_bytes, stream},
                arguments);
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  Registered* const registered = find(function);
  if (registered == nullptr) return fails_with(cudaErrorInvalidDeviceFunction);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) {
    return fails_with(cudaErrorInvalidValue);
  }
  cudaError_t error = cudaSuccess;
  const ptx::Kernel* const kernel = kernel_of(*registered, error);
  if (kernel == nullptr) return error;
  if (value < 0 || static_cast<size_t>(value) + static_bytes_of(*kernel) > most_shared_bytes()) {
    return refuse(cudaErrorInvalidValue, *registered,
                  fmt::format("{} bytes of dynamic shared memory beside {} static ones, of {}",
                              value, static_bytes_of(*kernel), most_shared_bytes()));
  }
  registered->allowed = value;
  return cudaSuccess;
}

}  // extern "C"
