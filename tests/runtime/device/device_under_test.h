// The GPU that the tests of the ops run on, where MTL_TEST_DEVICE=cuda asks for it
// (scripts/gpu-check, which also sets CUDA_LAUNCH_BLOCKING=1: a test looks at its tensors when an
// op has returned). Else the CUDA engine's kernels run on the host (support/emulated_cuda.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/device/device.h"

namespace mtl::test {

// The first GPU; null where none was asked for. Throws Error if there is none to use.
Device* gpu_under_test();

// Zeroed memory that the device under test and the host both use, aligned to 16 bytes.
using TestMemory = std::unique_ptr<uint8_t[], void (*)(uint8_t*)>;
TestMemory make_test_memory(size_t bytes);

// Dropout of a pass that lies in such memory, for as long as the tests run.
Dropout dropout_in_test_memory(float probability, int64_t first_sequence = 0,
                               int64_t sequence_elements = 0);

// A copy of a host tensor in the GPU's own memory, as far from a multiple of 16 bytes as it; what
// has become of it is copied back at the end. For tests whose tensors are the host's.
class OnGpu {
 public:
  OnGpu(Device& gpu, const Tensor& host) : view(host), gpu_(gpu), host_(host) {
    if (!host) return;
    memory_ = gpu.allocate(static_cast<size_t>(host.bytes()) + 16);
    view.data = static_cast<uint8_t*>(memory_) + reinterpret_cast<uintptr_t>(host.data) % 16;
    gpu.copy_from_host(view, host.data);
  }
  ~OnGpu() {
    if (memory_ == nullptr) return;
    gpu_.copy_to_host(host_.data, view);
    gpu_.free(memory_);
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  Tensor view;

 private:
  Device& gpu_;
  Tensor host_;
  void* memory_ = nullptr;
};

}  // namespace mtl::test
