// Finds and loads libmtl_cuda.so.
#pragma once

#include <string>
#include <vector>

#include "common/error.h"
#include "runtime/device/cuda_plugin.h"

namespace mtl {

// Where the library is looked for, in this order: MTL_CUDA_LIBRARY alone, if it is set; beside the
// program; in ../lib/mtl from there.
std::vector<std::string> cuda_library_places();

// Whether the library is in one of its places; loads nothing.
bool has_cuda_library();

// The library, which stays loaded until the process ends. Throws Error (Exit::environment):
// gpu.library (not there, or not loadable), gpu.library_version, gpu.cublas (libcublasLt missing).
const CudaPlugin& load_cuda();

// Why a library that exists cannot be loaded, from the words of the dynamic loader.
Diagnostic library_refusal(const std::string& path, const std::string& loader_words);

}  // namespace mtl
