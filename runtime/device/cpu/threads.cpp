#include "runtime/device/cpu/threads.h"

#include <cstdlib>
#include <new>
#include <omp.h>

namespace mtl {

int use_threads(int requested) {
  // OpenMP's own default already is OMP_NUM_THREADS, else the processors of the affinity mask.
  static const int by_default = omp_get_max_threads();
  const int threads = requested > 0 ? requested : by_default;
  omp_set_num_threads(threads);
  return threads;
}

Workspace::~Workspace() {
  std::free(memory_);
}

void* Workspace::get(unsigned long bytes) {
  if (bytes > bytes_) {
    constexpr unsigned long kPage = 4096;
    std::free(memory_);
    bytes_ = 0;
    const unsigned long rounded = (bytes + kPage - 1) / kPage * kPage;
    memory_ = std::aligned_alloc(kPage, rounded);
    if (memory_ == nullptr) throw std::bad_alloc();
    bytes_ = rounded;
  }
  return memory_;
}

}  // namespace mtl
