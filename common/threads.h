// Threads where a machine may have none left: `ulimit -u`, pids.max of a container.
#pragma once

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "common/error.h"

namespace mtl {

// Adds `count` threads of `run` to `threads`, or as many as can be started. Returns how many.
size_t start_threads(std::vector<std::thread>& threads, size_t count,
                     const std::function<void()>& run);

// For who cannot work without (exit code 4).
Error no_thread();

}  // namespace mtl
