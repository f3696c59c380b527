// GELU by tanh in double, for the tests of products: exact, and as cuBLASLt's epilogues have it.
#pragma once

#include <algorithm>
#include <cmath>

namespace mtl::test {

// Of results of 16 bits, cuBLASLt's epilogues take the tanh of the hardware (MUFU.TANH in the
// kernels that libcublasLt 13.0 has for Hopper), which is within so much of it, relatively (PTX
// manual, tanh.approx.f32).
inline constexpr double kHardwareTanh = 0x1p-11;

// `off`: by how much of itself the tanh is too large.
inline double gelu_tanh(double x, double off = 0) {
  return std::tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)) * (1 + off);
}
inline double gelu(double x, double off = 0) {
  return 0.5 * x * (1 + gelu_tanh(x, off));
}
inline double gelu_slope(double x, double off = 0) {
  const double t = gelu_tanh(x, off);
  return 0.5 * (1 + t) +
         0.5 * x * (1 - t * t) * 0.79788456080286535588 * (1 + 3 * 0.044715 * x * x);
}
// The most that the slope is off with the hardware's tanh: no more than bf16 rounds off a slope of
// 1, but where the slope is nearly 0 many times as much as there is of it.
inline double hardware_slope_error(double x) {
  const double exact = gelu_slope(x);
  return 1.01 * std::max(std::abs(gelu_slope(x, kHardwareTanh) - exact),
                         std::abs(gelu_slope(x, -kHardwareTanh) - exact));
}

}  // namespace mtl::test
