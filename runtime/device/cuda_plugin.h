// What mtl and libmtl_cuda.so have in common. Everything that includes a CUDA header is in that
// library, which is loaded at run time (load_cuda.h): one program serves machines with and without
// GPUs. This header knows nothing of CUDA.
//
// The two are built together: types of C++ cross between them, so a library of another version is
// refused before anything else of it is used. Errors cross as mtl::Error.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device/device.h"

namespace mtl {

class CommWorld;
class Store;
struct WorldOptions;

// A GPU as CUDA shows it to this process (CUDA_VISIBLE_DEVICES applied).
struct CudaDeviceFacts {
  std::string name;          // "NVIDIA H200"
  std::string uuid;          // "GPU-8f6a..."
  std::string pci;           // "0000:3b:00.0"
  int64_t memory_bytes = 0;  // of the device
  int64_t free_bytes = -1;   // -1: not asked
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  bool mig = false;     // a part of a GPU (multi-instance GPU)
  std::string refusal;  // why mtl cannot use it; empty = it can
};
struct CudaFacts {
  int driver = 0, runtime = 0;  // the CUDA version that the driver supports, and ours: 13000 = 13.0
  std::string driver_name;      // "580.65.06", empty = unknown
  std::vector<CudaDeviceFacts> devices;
};

struct CudaPlugin {
  const char* version;  // first for good: of the mtl that the library belongs to
  // Throws Error (Exit::environment) "gpu.*" when no GPU can be used at all. With `free_memory`
  // each device is opened for a moment, which takes some of its memory and up to a second.
  CudaFacts (*facts)(bool free_memory);
  // The engine on device `index` of those visible. Belongs to the thread that makes it. Throws
  // Error (Exit::environment) "gpu.*".
  std::unique_ptr<Device> (*make_device)(int index);
  // The transport of ranks on GPUs, over `device`, which is one of make_device. What it knows of a
  // failure is left in `crash_dir`.
  std::unique_ptr<CommWorld> (*make_nccl_world)(Store& store, const WorldOptions& options,
                                                Device& device, const std::string& crash_dir);
  // Which kernel attention of this shape and type runs on (MTL_ATTENTION), in words. Decides it,
  // which may take a second: else the first such op does. Throws Error "gpu.attention". Null =
  // there is no choice.
  std::string (*choose_attention)(Device& device, const AttentionShape& shape, DType dtype);
  // Host memory that all GPUs read and write in place, by the same address: slow, and what the
  // tests of the ops hold their tensors in.
  void* (*allocate_shared)(size_t bytes);
  void (*free_shared)(void* memory);
};

// The library's only symbol.
inline constexpr const char* kCudaPluginEntry = "mtl_cuda_plugin";
using CudaPluginEntry = const CudaPlugin* (*)();

}  // namespace mtl
