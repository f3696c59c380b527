// The element-wise loops around a matmul: type conversion, bias, GELU. One table per instruction
// set.
#pragma once

#include <cstdint>

namespace mtl {

struct MatmulKernels {
  // bf16 <-> f32, and f16 <-> f32, to nearest even; `widen_add` is to += from.
  void (*widen)(const uint16_t* from, float* to, int64_t n);
  void (*narrow)(const float* from, uint16_t* to, int64_t n);
  void (*widen_add)(const uint16_t* from, float* to, int64_t n);
  void (*add)(const float* from, float* to, int64_t n);
  void (*widen_f16)(const uint16_t* from, float* to, int64_t n);
  void (*narrow_f16)(const float* from, uint16_t* to, int64_t n);
  void (*widen_e4m3)(const uint8_t* from, float* to, int64_t n);
  void (*widen_e5m2)(const uint8_t* from, float* to, int64_t n);
  void (*scale)(float* x, float factor, int64_t n);
  // c = gelu_tanh(aux); c *= gelu_tanh'(aux).
  void (*gelu_f32)(const float* aux, float* c, int64_t n);
  void (*gelu_bf16)(const uint16_t* aux, uint16_t* c, int64_t n);
  void (*gelu_f16)(const uint16_t* aux, uint16_t* c, int64_t n);
  void (*gelu_grad_f32)(const float* aux, float* c, int64_t n);
  void (*gelu_grad_bf16)(const uint16_t* aux, uint16_t* c, int64_t n);
  // c = from * gelu_tanh'(aux), the product rounded once.
  void (*gelu_grad_narrow)(const uint16_t* aux, const float* from, uint16_t* c, int64_t n);
  void (*gelu_grad_narrow_f16)(const uint16_t* aux, const float* from, uint16_t* c, int64_t n);
  // a[i] = b[i] + s * c[i], for the measurement of the memory rate.
  void (*triad)(float* a, const float* b, const float* c, float s, int64_t n);
};

namespace base {
extern const MatmulKernels kMatmulKernels;
}
namespace avx2 {
extern const MatmulKernels kMatmulKernels;
}
namespace avx512 {
extern const MatmulKernels kMatmulKernels;
}

}  // namespace mtl
