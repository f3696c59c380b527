// The largest magnitude of a tensor's elements, as the bits of a float: without its sign a float is
// the larger the larger its bits are, and NaN is the largest. So it is a maximum of integers, which
// comes out the same in any order, atomics included.
#pragma once

#include "runtime/device/cuda/kernels.h"

namespace mtl::cuda {

__device__ inline uint32_t magnitude_bits(float x) {
  return word_of(x) & 0x7fffffffu;
}

// The largest of a block's values, on thread 0. Once in a kernel, by all threads of the block,
// which has kThreads at most.
template <int kThreads>
__device__ inline uint32_t block_max(uint32_t value) {
  constexpr int kWarpsOfBlock = kThreads / static_cast<int>(kWarp);
  __shared__ uint32_t shared[kWarpsOfBlock];
  for (unsigned step = kWarp / 2; step > 0; step /= 2) {
    value = max(value, __shfl_xor_sync(kAllLanes, value, step));
  }
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
  __syncthreads();
  for (unsigned w = 0; w < kWarpsOfBlock; ++w) {
    if (w * kWarp < blockDim.x) value = max(value, shared[w]);
  }
  return value;
}

// What a thread has of the `amax` of an op that writes T (device.h): nothing where `amax` is null.
// Elements are taken before they are rounded to T and the largest is rounded once: rounding keeps
// their order, infinities and NaN.
template <typename T>
class Amax {
 public:
  __device__ explicit Amax(uint32_t* amax) : amax_(amax) {}
  template <int N>
  __device__ void take(const Floats<N>& values) {
    if (amax_ == nullptr) return;
    for (int k = 0; k < N; ++k) largest_ = max(largest_, magnitude_bits(values.at[k]));
  }
  // Behind the last element, by all threads of the block, kThreads at most.
  template <int kThreads>
  __device__ void finish() const {
    if (amax_ == nullptr) return;
    const uint32_t largest = block_max<kThreads>(largest_);
    if (threadIdx.x == 0)
      atomicMax(amax_, magnitude_bits(to_float(from_float<T>(float_of(largest)))));
  }

 private:
  uint32_t* amax_;
  uint32_t largest_ = 0;
};

}  // namespace mtl::cuda
