// CUDA's error codes as Errors.
#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>

namespace mtl::cuda {

// Throws Error (Exit::run_failed) "device.cuda" naming `what`, in words as "starting a kernel".
void check(cudaError_t error, const char* what);

// cudaMalloc on the current device. Throws Error (Exit::out_of_memory) "device.out_of_memory" where
// it has no more.
void* gpu_memory(size_t bytes);

// Throws why CUDA does not start here (refusals.h); returns how many devices it shows.
int start_cuda();
[[noreturn]] void refuse_start(cudaError_t error);

}  // namespace mtl::cuda
