// GELU and SiLU of one element, for every kernel that needs them: the same bits everywhere.
#pragma once

#include "runtime/device/cuda/exponential.h"

namespace mtl::cuda {

// sigmoid(x) and 1 - sigmoid(x), both to the relative precision of e^-|x|: no exponential that
// overflows, no difference of nearly equal numbers. With t = e^-|x|: 1 / (1 + t) and t / (1 + t).
struct Sigmoid {
  float value, rest;
};
__device__ inline Sigmoid sigmoid(float x) {
  const float t = exp_of(-fabsf(x));
  const float large = inverse_of(1.0f + t);
  const float small = t * large;
  return x < 0 ? Sigmoid{small, large} : Sigmoid{large, small};
}

// gelu_tanh(x) = x/2 (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3). Written with
// explicit fused operations: the compiler has no choice left that could differ between kernels.
inline constexpr float kGeluLinear = 1.5957691216f;    // 2 sqrt(2/pi)
inline constexpr float kGeluCubic = 0.0713548162726f;  // 2 sqrt(2/pi) 0.044715

__device__ inline float gelu(float x) {
  const float twice_u = x * fmaf(kGeluCubic, x * x, kGeluLinear);
  return x * sigmoid(twice_u).value;
}
// s + x s (1 - s) (2u)', s = sigmoid(2u). From 100 on it is 1 (0 below -100) to the last bit;
// farther out the product would be 0 times infinity.
__device__ inline float gelu_derivative(float value) {
  const float x = value > 100.0f ? 100.0f : (value < -100.0f ? -100.0f : value);
  const float square = x * x;
  const Sigmoid s = sigmoid(x * fmaf(kGeluCubic, square, kGeluLinear));
  const float slope = fmaf(3.0f * kGeluCubic, square, kGeluLinear);
  return fmaf(s.value * s.rest, x * slope, s.value);
}

}  // namespace mtl::cuda
