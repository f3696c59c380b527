// Vectors of the widest kind that the instruction set of this compilation has (kernels.cmake
// compiles every kernel source three times), through GCC's vector extensions: arithmetic reads like
// scalar code, and the order of every sum is what the source says.
//
// Everything lives in an unnamed namespace, so that no function compiled for AVX-512 can be shared
// by the linker with code for an older machine. In memory bf16 is uint16_t and f16 is _Float16; in
// registers both are f32.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "common/half.h"

#define MTL_INLINE inline __attribute__((always_inline))
#define MTL_LAMBDA __attribute__((always_inline))

namespace mtl::kernels::MTL_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int kLanes = kVectorBytes / 4;

typedef float F __attribute__((vector_size(kVectorBytes)));
typedef int32_t I __attribute__((vector_size(kVectorBytes)));
typedef uint32_t U __attribute__((vector_size(kVectorBytes)));
typedef uint64_t U64 __attribute__((vector_size(kVectorBytes)));
typedef double D __attribute__((vector_size(kVectorBytes)));
typedef uint16_t HalfU16 __attribute__((vector_size(kVectorBytes / 2)));
typedef float HalfF __attribute__((vector_size(kVectorBytes / 2)));

MTL_INLINE F splat(float x) {
  return x - F{};
}

// How many lanes of a vector exist in memory: all, or the `count` first of a row's last vector.
// The arithmetic is the same for both, so a result does not depend on where a range was cut.
struct Full {};
struct Part {
  int64_t count;
};

MTL_INLINE F widen(HalfU16 x) {
  // Zero extension by name: gcc 12 makes three instructions of __builtin_convertvector here.
#if defined(__AVX512F__)
  const U wide = (U)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)x);
#elif defined(__AVX2__)
  const U wide = (U)_mm256_cvtepu16_epi32((__m128i)x);
#else
  const U wide = __builtin_convertvector(x, U);
#endif
  return (F)(wide << 16);
}

// Round to nearest, ties to even; a NaN stays a (quiet) NaN of the same sign.
MTL_INLINE HalfU16 narrow(F x) {
  const U bits = (U)x;
  const U rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return __builtin_convertvector((x != x ? bits | 0x400000u : rounded) >> 16, HalfU16);
}

// The same for f16 (common/half.h says it in full). The instructions keep subnormals whatever the
// control register says.
MTL_INLINE F widen_f16(HalfU16 x) {
#if defined(__AVX512F__)
  return (F)_mm512_maskz_cvtph_ps(0xffff, (__m256i)x);
#elif defined(__AVX2__)
  return (F)_mm256_cvtph_ps((__m128i)x);
#else
  F wide;
  for (int i = 0; i < kLanes; ++i) wide[i] = f16_to_f32(x[i]);
  return wide;
#endif
}
MTL_INLINE HalfU16 narrow_f16(F x) {
#if defined(__AVX512F__)
  return (HalfU16)_mm512_maskz_cvtps_ph(0xffff, (__m512)x, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__AVX2__)
  return (HalfU16)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT);
#else
  HalfU16 narrow;
  for (int i = 0; i < kLanes; ++i) narrow[i] = f32_to_f16(x[i]);
  return narrow;
#endif
}

MTL_INLINE F load(const float* p, Full, float = 0) {
  F x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
MTL_INLINE F load(const uint16_t* p, Full, float = 0) {
  HalfU16 x;
  __builtin_memcpy(&x, p, sizeof x);
  return widen(x);
}
MTL_INLINE F load(const _Float16* p, Full, float = 0) {
  HalfU16 x;
  __builtin_memcpy(&x, p, sizeof x);
  return widen_f16(x);
}
// Lanes that are not in memory read as `missing`.
template <class T>
MTL_INLINE F load(const T* p, Part part, float missing = 0) {
  T lanes[kLanes] = {};
  __builtin_memcpy(lanes, p, static_cast<size_t>(part.count) * sizeof(T));
  F x = load(lanes, Full{});
  if (missing != 0) {
    for (int64_t i = part.count; i < kLanes; ++i) x[i] = missing;
  }
  return x;
}

MTL_INLINE void store(float* p, F x, Full) {
  __builtin_memcpy(p, &x, sizeof x);
}
MTL_INLINE void store(uint16_t* p, F x, Full) {
  const HalfU16 h = narrow(x);
  __builtin_memcpy(p, &h, sizeof h);
}
MTL_INLINE void store(_Float16* p, F x, Full) {
  const HalfU16 h = narrow_f16(x);
  __builtin_memcpy(p, &h, sizeof h);
}
template <class T>
MTL_INLINE void store(T* p, F x, Part part) {
  T lanes[kLanes];
  store(lanes, x, Full{});
  __builtin_memcpy(p, lanes, static_cast<size_t>(part.count) * sizeof(T));
}

// f32 in two halves (common/half.h): the upper is a bf16, the lower what that lacks.
template <class Lanes>
MTL_INLINE F load_parts(const uint16_t* upper, const uint16_t* lower, Lanes lanes) {
  const I rest = (I)load(lower, lanes) >> 16;  // with its sign
  return (F)((U)load(upper, lanes) + (U)rest);
}
MTL_INLINE void store_parts(uint16_t* upper, uint16_t* lower, F x, Full) {
  const U bits = (U)x;
  const HalfU16 high =
      __builtin_convertvector((x != x ? bits | 0x400000u : bits + 0x8000u) >> 16, HalfU16);
  const HalfU16 low = __builtin_convertvector(x != x ? U{} : bits & 0xffffu, HalfU16);
  __builtin_memcpy(upper, &high, sizeof high);
  __builtin_memcpy(lower, &low, sizeof low);
}
MTL_INLINE void store_parts(uint16_t* upper, uint16_t* lower, F x, Part part) {
  uint16_t high[kLanes], low[kLanes];
  store_parts(high, low, x, Full{});
  __builtin_memcpy(upper, high, static_cast<size_t>(part.count) * sizeof(uint16_t));
  __builtin_memcpy(lower, low, static_cast<size_t>(part.count) * sizeof(uint16_t));
}

// Stores that go around the caches: for outputs that are larger than the caches and not read first,
// they save the read of the line that is about to be overwritten. `p` must be aligned to the bytes
// stored; finish with stream_done().
MTL_INLINE void stream(float* p, F x) {
#if defined(__AVX512F__)
  _mm512_stream_ps(p, (__m512)x);
#elif defined(__AVX2__)
  _mm256_stream_ps(p, (__m256)x);
#else
  _mm_stream_ps(p, (__m128)x);
#endif
}
MTL_INLINE void stream(void* p, HalfU16 h) {
#if defined(__AVX512F__)
  _mm256_stream_si256(static_cast<__m256i*>(p), (__m256i)h);
#elif defined(__AVX2__)
  _mm_stream_si128(static_cast<__m128i*>(p), (__m128i)h);
#else
  __builtin_memcpy(p, &h, sizeof h);
#endif
}
MTL_INLINE void stream(uint16_t* p, F x) {
  stream(p, narrow(x));
}
MTL_INLINE void stream(_Float16* p, F x) {
  stream(p, narrow_f16(x));
}
MTL_INLINE void stream_done() {
  _mm_sfence();
}
MTL_INLINE bool can_stream(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % kVectorBytes == 0;
}

// body(i, lanes) for every vector of [0, n).
template <class Body>
MTL_INLINE void each(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, Full{});
  if (i < n) body(i, Part{n - i});
}
// body(i, lanes, k) with k cycling through 0..3: four independent accumulators hide the latency of
// an addition.
template <class Body>
MTL_INLINE void each4(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    body(i, Full{}, 0);
    body(i + kLanes, Full{}, 1);
    body(i + 2 * kLanes, Full{}, 2);
    body(i + 3 * kLanes, Full{}, 3);
  }
  for (; i + kLanes <= n; i += kLanes) body(i, Full{}, 0);
  if (i < n) body(i, Part{n - i}, 1);
}

// The sum of the lanes in pairs, halves first: a fixed order.
MTL_INLINE float sum_lanes(F x) {
  typedef float F4 __attribute__((vector_size(16)));
#if defined(__AVX512F__)
  const HalfF half = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
                     __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
  const F4 four = __builtin_shufflevector(half, half, 0, 1, 2, 3) +
                  __builtin_shufflevector(half, half, 4, 5, 6, 7);
#elif defined(__AVX2__)
  const F4 four =
      __builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7);
#else
  const F4 four = x;
#endif
  return (four[0] + four[2]) + (four[1] + four[3]);
}
MTL_INLINE float sum_lanes(const F (&x)[4]) {
  return sum_lanes((x[0] + x[1]) + (x[2] + x[3]));
}
MTL_INLINE float max_lanes(F x) {
  float max = x[0];
  for (int i = 1; i < kLanes; ++i) max = x[i] > max ? x[i] : max;
  return max;
}
// The larger and the smaller of two; b where a or b is NaN (what the instructions do; the ternary
// operator takes gcc 12 three of them).
MTL_INLINE F max(F a, F b) {
#if defined(__AVX512F__)
  return (F)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (F)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return (F)_mm_max_ps((__m128)a, (__m128)b);
#endif
}
MTL_INLINE F min(F a, F b) {
#if defined(__AVX512F__)
  return (F)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (F)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return (F)_mm_min_ps((__m128)a, (__m128)b);
#endif
}
MTL_INLINE F sqrt(F x) {
#if defined(__AVX512F__)
  // The unmasked form makes gcc 12 warn of an uninitialised operand (here and in philox.h).
  return (F)_mm512_maskz_sqrt_ps(0xffff, (__m512)x);
#elif defined(__AVX2__)
  return (F)_mm256_sqrt_ps((__m256)x);
#else
  return (F)_mm_sqrt_ps((__m128)x);
#endif
}

// e^x, relative error below 2e-7; x above 88 counts as 88, results below the smallest normal number
// are 0, NaN stays NaN. Cody-Waite reduction x = k ln 2 + r with |r| <= ln 2 / 2, then
// e^r = 1 + r + r^2 q(r), q the polynomial of degree 4 with the smallest maximal relative error
// (3.1e-9; found with the Remez exchange), then 2^k put together from its bits.
MTL_INLINE F exp(F x) {
  constexpr float kLow = -87.336540f;    // ln(2^-126)
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const F t = min(splat(88.0f), max(splat(kLow), x));
  const F shifted = t * 1.44269504f + kMagic;
  const F k = shifted - kMagic;
  const U exponent = (U)shifted - 0x4b400000u;  // the bits of kMagic
  F r = t - k * 0.693359375f;                   // ln 2 in two parts; k times the first is exact
  r = r + k * 2.12194440e-4f;
  F q = splat(0.00138144626f);
  q = q * r + 0.00836878045f;
  q = q * r + 0.0416683943f;
  q = q * r + 0.166665201f;
  q = q * r + 0.499999934f;
  const F power = (F)((exponent + 127u) << 23);
  const F y = (q * (r * r) + r + 1.0f) * power;
  return x < kLow ? F{} : y;
}

}  // namespace
}  // namespace mtl::kernels::MTL_ISA
