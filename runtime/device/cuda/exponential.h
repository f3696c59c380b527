// e^x, 2^x and 1/x at the rate of the hardware: an instruction of the special function unit, and a
// product for e^x. expf and a division are nine and more, which made kernels that read two bytes
// for each of them as slow as their arithmetic (docs/benchmarks/gpu-instructions.md).
//
// Relative errors: 2^x about two units of f32's last place, 1/x one, e^x 1.25 |x| 2^-24 more: the
// product's and that of log2(e) (of a softmax: little where the terms are large). Results below
// 2^-126 are 0.
#pragma once

#include <cmath>

#include "runtime/device/cuda/gpu.h"

namespace mtl::cuda {

inline constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// -infinity gives 0.
__device__ inline float exp2_of(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::exp2(x);
#endif
}

__device__ inline float exp_of(float x) {
  return exp2_of(x * kLog2e);
}

__device__ inline float inverse_of(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.0f / x;
#endif
}

__device__ inline float log2_of(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::log2(x);
#endif
}

// tanh x, within 2^-21 of it: the [5/4] Pade approximant where the other form would cancel.
__device__ inline float tanh_of(float x) {
  const float s = x * x;
  const float near =
      x * (945.0f + s * (105.0f + s)) * inverse_of(945.0f + s * (420.0f + 15.0f * s));
  const float far = 1.0f - 2.0f * inverse_of(exp_of(2.0f * x) + 1.0f);
  return s < 1.0f ? near : far;
}

}  // namespace mtl::cuda
