// Arithmetic shared by the matmul and attention kernels, written so that the compiler turns loops
// over it into vector code: no branches, no calls. Everything is `static`: each source is compiled
// once per instruction set, and the linker must not mix them.
#pragma once

#include <cstdint>

#include "common/half.h"

namespace mtl {

// 2^x by splitting x = n + f, |f| <= 1/2, and a polynomial of degree 6 for 2^f (Chebyshev
// interpolation; relative error below 2e-7 including rounding). Below -126 the result is 0, above
// 126 it is 2^126; NaN gives NaN.
[[maybe_unused]] static inline float exp2_fast(float x) {
  float t = x < -126.0f ? -126.0f : x;
  t = t > 126.0f ? 126.0f : t;
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = t + kMagic;
  uint32_t bits;
  __builtin_memcpy(&bits, &shifted, 4);
  const float f = t - (shifted - kMagic);
  bits = (bits << 23) + 0x3f800000u;  // 2^n
  float power;
  __builtin_memcpy(&power, &bits, 4);
  float p = 1.545316294e-04f;
  p = p * f + 1.339086336e-03f;
  p = p * f + 9.618082557e-03f;
  p = p * f + 5.550357114e-02f;
  p = p * f + 2.402265076e-01f;
  p = p * f + 6.931471880e-01f;
  p = p * f + 1.0f;
  p *= power;
  return x < -126.0f ? 0.0f : p;
}

// tanh x, within 2e-7 of it: the [5/4] Pade approximant where the other form would cancel.
[[maybe_unused]] static inline float tanh_fast(float x) {
  const float s = x * x;
  const float near = x * (945.0f + s * (105.0f + s)) / (945.0f + s * (420.0f + 15.0f * s));
  const float far = 1.0f - 2.0f / (exp2_fast(2.885390082f * x) + 1.0f);
  return s < 1.0f ? near : far;
}

}  // namespace mtl
