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

// quick_gelu(x) = x sigmoid(1.702 x).
inline constexpr float kQuickGelu = 1.702f;

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

// The integral of the normal distribution up to x, erfc(-x / sqrt(2)) / 2, and its density. For x
// below 0 to a relative 2e-7 but for the exponential's argument: W. Press et al., Numerical
// Recipes, 6.2 (erfc by one polynomial of 1 / (1 + z / 2) in the exponent). The CPU's kernels have
// the same.
struct Normal {
  float integral, density;
};
__device__ inline Normal normal(float x) {
  const float z = 0.70710678f * fabsf(x);
  const float t = inverse_of(fmaf(0.5f, z, 1.0f));
  float p = 0.17087277f;
  p = fmaf(p, t, -0.82215223f);
  p = fmaf(p, t, 1.48851587f);
  p = fmaf(p, t, -1.13520398f);
  p = fmaf(p, t, 0.27886807f);
  p = fmaf(p, t, -0.18628806f);
  p = fmaf(p, t, 0.09678418f);
  p = fmaf(p, t, 0.37409196f);
  p = fmaf(p, t, 1.00002368f);
  p = fmaf(p, t, -1.26551223f);
  const float bell = exp_of(-z * z);
  const float tail = 0.5f * t * bell * exp_of(p);
  return {x < 0 ? tail : 1.0f - tail, 0.39894228f * bell};
}
// Beyond 20 in magnitude the integral is 0 or 1 to the last bit, and the square could overflow.
__device__ inline float gelu_exact(float x) {
  const float bounded = x > 20.0f ? 20.0f : (x < -20.0f ? -20.0f : x);
  return x * normal(bounded).integral;
}
__device__ inline float gelu_exact_derivative(float value) {
  const float x = value > 20.0f ? 20.0f : (value < -20.0f ? -20.0f : value);
  const Normal n = normal(x);
  return fmaf(x, n.density, n.integral);
}

}  // namespace mtl::cuda
