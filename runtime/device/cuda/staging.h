// Between memory of the host that is not pinned and a GPU's.
#pragma once

#include <array>
#include <cuda_runtime_api.h>

#include "runtime/device/cuda/cuda_errors.h"

namespace mtl::cuda {

// Pinned memory in which data of the host waits to be copied, or arrives: a ring of slots, each
// free again when the copy that used it is done.
class Staging {
 public:
  static constexpr size_t kSlotBytes = size_t{1} << 20;
  static constexpr size_t kSlots = 16;

  Staging() {
    check(cudaHostAlloc(reinterpret_cast<void**>(&memory_), kSlotBytes * kSlots,
                        cudaHostAllocDefault),
          "pinned memory for copies");
    for (cudaEvent_t& event : done_) {
      check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event");
    }
  }
  ~Staging() {
    for (const cudaEvent_t event : done_) {
      if (event != nullptr) cudaEventDestroy(event);
    }
    cudaFreeHost(memory_);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // The next slot, once what it held has been copied. An event that was never recorded is done.
  size_t take() {
    const size_t slot = next_++ % kSlots;
    wait(slot);
    return slot;
  }
  char* at(size_t slot) const { return memory_ + slot * kSlotBytes; }
  void copied(size_t slot, Stream stream) {
    check(cudaEventRecord(done_[slot], stream), "an event");
  }
  void wait(size_t slot) { check(cudaEventSynchronize(done_[slot]), "waiting for a copy"); }

 private:
  char* memory_ = nullptr;
  std::array<cudaEvent_t, kSlots> done_ = {};
  size_t next_ = 0;
};

}  // namespace mtl::cuda
