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

}  // namespace mtl::test
