#include "runtime/device/cpu/kernels/matmul_kernels.h"

#include "common/float8.h"
#include "runtime/device/cpu/kernels/matmul_math.h"

namespace mtl {
namespace {

// gelu_tanh(x) = x/2 (1 + tanh u) = x * sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3).
constexpr float kRoot = 0.7978845608028654f;  // sqrt(2/pi)
constexpr float kCubic = 0.044715f;
constexpr float kMinus2Log2e = -2.885390081777927f;  // -2 log2(e): sigmoid(2u) = 1/(1 + 2^(this*u))

inline float sigmoid_of(float x) {
  const float u = kRoot * (x + kCubic * x * x * x);
  return 1.0f / (1.0f + exp2_fast(kMinus2Log2e * u));
}
inline float gelu(float x) {
  return x * sigmoid_of(x);
}
inline float gelu_derivative(float value) {
  // Beyond +-20 the derivative is 0 or 1 to the last bit, and the cube could overflow.
  float x = value < -20.0f ? -20.0f : value;
  x = x > 20.0f ? 20.0f : x;
  const float s = sigmoid_of(x);
  const float slope = 2.0f * kRoot * (1.0f + 3.0f * kCubic * x * x);  // d(2u)/dx
  return s + x * s * (1.0f - s) * slope;
}

void widen(const uint16_t* __restrict from, float* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = bf16_to_f32(from[i]);
}
void narrow(const float* __restrict from, uint16_t* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = f32_to_bf16(from[i]);
}
void widen_f16(const uint16_t* __restrict from, float* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = f16_to_f32(from[i]);
}
void narrow_f16(const float* __restrict from, uint16_t* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = f32_to_f16(from[i]);
}
void widen_add(const uint16_t* __restrict from, float* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += bf16_to_f32(from[i]);
}
void add(const float* __restrict from, float* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += from[i];
}
void widen_e4m3(const uint8_t* __restrict from, float* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = e4m3_to_f32(from[i]);
}
void widen_e5m2(const uint8_t* __restrict from, float* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = e5m2_to_f32(from[i]);
}
void scale(float* x, float factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}
void gelu_f32(const float* __restrict aux, float* __restrict c, int64_t n) {
  for (int64_t i = 0; i < n; ++i) c[i] = gelu(aux[i]);
}
void gelu_bf16(const uint16_t* __restrict aux, uint16_t* __restrict c, int64_t n) {
  for (int64_t i = 0; i < n; ++i) c[i] = f32_to_bf16(gelu(bf16_to_f32(aux[i])));
}
void gelu_f16(const uint16_t* __restrict aux, uint16_t* __restrict c, int64_t n) {
  for (int64_t i = 0; i < n; ++i) c[i] = f32_to_f16(gelu(f16_to_f32(aux[i])));
}
void gelu_grad_f32(const float* __restrict aux, float* __restrict c, int64_t n) {
  for (int64_t i = 0; i < n; ++i) c[i] *= gelu_derivative(aux[i]);
}
void gelu_grad_bf16(const uint16_t* __restrict aux, uint16_t* __restrict c, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    c[i] = f32_to_bf16(bf16_to_f32(c[i]) * gelu_derivative(bf16_to_f32(aux[i])));
  }
}
void gelu_grad_narrow(const uint16_t* __restrict aux, const float* __restrict from,
                      uint16_t* __restrict c, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    c[i] = f32_to_bf16(from[i] * gelu_derivative(bf16_to_f32(aux[i])));
  }
}
void gelu_grad_narrow_f16(const uint16_t* __restrict aux, const float* __restrict from,
                          uint16_t* __restrict c, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    c[i] = f32_to_f16(from[i] * gelu_derivative(f16_to_f32(aux[i])));
  }
}
void triad(float* __restrict a, const float* __restrict b, const float* __restrict c, float s,
           int64_t n) {
  for (int64_t i = 0; i < n; ++i) a[i] = b[i] + s * c[i];
}

}  // namespace

namespace MTL_ISA {
extern const MatmulKernels kMatmulKernels = {.widen = widen,
                                             .narrow = narrow,
                                             .widen_add = widen_add,
                                             .add = add,
                                             .widen_f16 = widen_f16,
                                             .narrow_f16 = narrow_f16,
                                             .widen_e4m3 = widen_e4m3,
                                             .widen_e5m2 = widen_e5m2,
                                             .scale = scale,
                                             .gelu_f32 = gelu_f32,
                                             .gelu_bf16 = gelu_bf16,
                                             .gelu_f16 = gelu_f16,
                                             .gelu_grad_f32 = gelu_grad_f32,
                                             .gelu_grad_bf16 = gelu_grad_bf16,
                                             .gelu_grad_narrow = gelu_grad_narrow,
                                             .gelu_grad_narrow_f16 = gelu_grad_narrow_f16,
                                             .triad = triad};
}
}  // namespace mtl
