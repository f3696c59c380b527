// CUDA's error codes as Errors.
#pragma once

#include <cuda_runtime_api.h>

namespace mtl::cuda {

// Throws Error (Exit::run_failed) "device.cuda" naming `what`, in words as "starting a kernel".
void check(cudaError_t error, const char* what);

// Throws why CUDA does not start here (refusals.h); returns how many devices it shows.
int start_cuda();
[[noreturn]] void refuse_start(cudaError_t error);

}  // namespace mtl::cuda
