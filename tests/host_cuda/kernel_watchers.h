// Who looks on while kernels run as PTX (tests/ptx/watch.h), and what they say.
#pragma once

#include <memory>

#include "ptx/machine.h"

namespace mtl::host_cuda {

// Runs it with the watchers that the environment asks for (kernels.cpp). `module` is the kernel's.
void run_watched(const std::shared_ptr<const ptx::Module>& module, ptx::Launch launch);

}  // namespace mtl::host_cuda
