// Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC'11)
// for a run of counters, and the dropout factors made from it.
#pragma once

#include "runtime/device/cpu/kernels/table.h"
#include "runtime/device/cpu/kernels/vector.h"

namespace mtl::kernels::MTL_ISA {
namespace {

// The product of the low halves of each 64-bit lane.
MTL_INLINE U64 multiply_low(U64 a, U64 b) {
#if defined(__AVX512F__)
  return (U64)_mm512_maskz_mul_epu32(0xff, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (U64)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#else
  return (U64)_mm_mul_epu32((__m128i)a, (__m128i)b);
#endif
}

constexpr int kCountersPerStep = kLanes / 2;         // one counter per 64-bit lane
constexpr int kWordsPerStep = 4 * kCountersPerStep;  // = 2 vectors

// The words of counters first .. first + kCountersPerStep - 1, in order: word w of counter
// first + j is element 4 j + w of {low, high}. Each of the four state words sits in the low half of
// a 64-bit lane; high halves hold rubbish until the end, which the multiplications do not see.
MTL_INLINE void philox(uint64_t first, uint64_t key, U& low, U& high) {
  U64 counter = {};  // as gcc sees it with ThreadSanitizer, the loop may leave some out
  for (int j = 0; j < kCountersPerStep; ++j) counter[j] = first + static_cast<uint64_t>(j);
  U64 x0 = counter, x1 = counter >> 32, x2 = {}, x3 = {};
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const U64 p0 = multiply_low(x0, U64{} + 0xD2511F53u);
    const U64 p1 = multiply_low(x2, U64{} + 0xCD9E8D57u);
    x0 = (p1 >> 32) ^ x1 ^ static_cast<uint64_t>(key0);
    x1 = p1;
    x2 = (p0 >> 32) ^ x3 ^ static_cast<uint64_t>(key1);
    x3 = p0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  const U64 words01 = (x0 & 0xffffffffu) | (x1 << 32);
  const U64 words23 = (x2 & 0xffffffffu) | (x3 << 32);
#if defined(__AVX512F__)
  low = (U)__builtin_shufflevector(words01, words23, 0, 8, 1, 9, 2, 10, 3, 11);
  high = (U)__builtin_shufflevector(words01, words23, 4, 12, 5, 13, 6, 14, 7, 15);
#elif defined(__AVX2__)
  low = (U)__builtin_shufflevector(words01, words23, 0, 4, 1, 5);
  high = (U)__builtin_shufflevector(words01, words23, 2, 6, 3, 7);
#else
  low = (U)__builtin_shufflevector(words01, words23, 0, 2);
  high = (U)__builtin_shufflevector(words01, words23, 1, 3);
#endif
}

// The factors (0 or mask.scale) of up to kMaskBlock elements from `first` on. Counters cover four
// elements each and `first` need not be a multiple of four, so the factor of element `first` is at
// the pointer that is returned, within `buffer`.
constexpr int64_t kMaskBlock = 1024;
constexpr int64_t kMaskBuffer = kMaskBlock + 2 * kWordsPerStep;
MTL_INLINE const float* mask_factors(const Mask& mask, uint64_t first, int64_t n,
                                     float (&buffer)[kMaskBuffer]) {
  const int64_t skip = static_cast<int64_t>(first % 4);
  uint64_t counter = first / 4;
  for (int64_t i = 0; i < skip + n; i += kWordsPerStep, counter += kCountersPerStep) {
    U low, high;
    philox(counter, mask.key, low, high);
    store(buffer + i, low >= mask.threshold ? splat(mask.scale) : F{}, Full{});
    store(buffer + i + kLanes, high >= mask.threshold ? splat(mask.scale) : F{}, Full{});
  }
  return buffer + skip;
}

}  // namespace
}  // namespace mtl::kernels::MTL_ISA
