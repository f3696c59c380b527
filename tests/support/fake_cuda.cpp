// A stand-in for libmtl_cuda.so: the way through the loader into another library, and a device
// whose memory the program cannot touch (guarded_device.h), where there is no GPU. It is called
// what MTL_FAKE_GPU_NAME says.
#include <cstdlib>

#include "common/error.h"
#include "common/version.h"
#include "runtime/device/cuda_plugin.h"
#include "support/guarded_device.h"

namespace {

mtl::CudaFacts facts(bool) {
  mtl::CudaFacts facts;
  facts.driver = facts.runtime = 13000;
  const char* name = std::getenv("MTL_FAKE_GPU_NAME");
  facts.devices.push_back({.name = name != nullptr ? name : "Stand-in",
                           .uuid = "GPU-0",
                           .pci = "0000:00:00.0",
                           .memory_bytes = int64_t{1} << 30,
                           .major = 9,
                           .minor = 0,
                           .multiprocessors = 1,
                           .mig = false,
                           .refusal = {}});
  return facts;
}

std::unique_ptr<mtl::Device> make_device(int index) {
  if (index != 0) {
    throw mtl::Error(mtl::Exit::environment,
                     {.code = "gpu.index", .what = "there is one stand-in", .help = "use it"});
  }
  return std::make_unique<mtl::test::GuardedDevice>();
}

std::string choose_attention(mtl::Device&, const mtl::AttentionShape& shape, mtl::DType) {
  return "attention of " + std::to_string(shape.heads) + " heads by nobody";
}

}  // namespace

extern "C" const mtl::CudaPlugin* mtl_cuda_plugin() {
  static const std::string version = mtl::version();
  static const mtl::CudaPlugin plugin = {.version = version.c_str(),
                                         .facts = facts,
                                         .make_device = make_device,
                                         .make_nccl_world = nullptr,
                                         .choose_attention = choose_attention,
                                         .allocate_shared = nullptr,
                                         .free_shared = nullptr};
  return &plugin;
}
