#include "common/threads.h"

#include <system_error>

namespace mtl {

size_t start_threads(std::vector<std::thread>& threads, size_t count,
                     const std::function<void()>& run) {
  threads.reserve(threads.size() + count);  // so that what throws below is the system
  for (size_t started = 0; started < count; ++started) {
    try {
      threads.emplace_back(run);
    } catch (const std::system_error&) {
      return started;
    }
  }
  return count;
}

Error no_thread() {
  return Error(Exit::environment,
               {.code = "machine.no_thread",
                .what = "the system starts no thread any more",
                .help = "check the limits on processes: ulimit -u, and pids.max of the container"});
}

}  // namespace mtl
