// The largest magnitude, and rounding to FP8: loops that the compiler makes vector code of.
#include "common/float8.h"
#include "runtime/device/cpu/kernels/parts.h"

namespace mtl::kernels::MTL_ISA {
namespace {

inline float wide(float x) {
  return x;
}
inline float wide(uint16_t x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x) << 16);
}
inline float wide(_Float16 x) {
  return f16_to_f32(__builtin_bit_cast(uint16_t, x));
}

// Without its sign a float is the larger the larger its bits are, and NaN is the largest.
template <class T>
uint32_t largest_bits(const void* x, int64_t n) {
  const T* values = static_cast<const T*>(x);
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, wide(values[i])) & 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

template <class T>
void to_e4m3(const void* x, int64_t n, float scale, uint8_t* __restrict to) {
  const T* values = static_cast<const T*>(x);
  for (int64_t i = 0; i < n; ++i) to[i] = f32_to_e4m3(wide(values[i]) * scale);
}
template <class T>
void to_e5m2(const void* x, int64_t n, float scale, uint8_t* __restrict to) {
  const T* values = static_cast<const T*>(x);
  for (int64_t i = 0; i < n; ++i) to[i] = f32_to_e5m2(wide(values[i]) * scale);
}

template <class T>
void add_typed(TypedKernels& table) {
  table.largest_bits = largest_bits<T>;
  table.to_e4m3 = to_e4m3<T>;
  table.to_e5m2 = to_e5m2<T>;
}

}  // namespace

void add_float8_kernels(VectorKernels& table) {
  add_typed<float>(table.f32);
  add_typed<uint16_t>(table.bf16);
  add_typed<_Float16>(table.f16);
}

}  // namespace mtl::kernels::MTL_ISA
