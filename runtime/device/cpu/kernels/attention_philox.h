// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) over vector
// registers. A 32-bit word lives in the lower half of a 64-bit lane; what is left in the upper half
// is never read: the 32 x 32 -> 64 bit multiplication ignores it.
#pragma once

#include <cstdint>
#include <immintrin.h>

namespace mtl {
namespace {

#if defined(__AVX512F__)
typedef uint64_t Words __attribute__((vector_size(64), aligned(8), may_alias));
// By the masked form: gcc 12 warns about the other one in its own header.
inline Words multiply32(Words a, Words b) {
  return reinterpret_cast<Words>(
      _mm512_maskz_mul_epu32(0xff, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
}
constexpr Words kFirstPairs = {0, 8, 1, 9, 2, 10, 3, 11}, kLastPairs = kFirstPairs + 4;
constexpr Words kLaneNumbers = {0, 1, 2, 3, 4, 5, 6, 7};
#elif defined(__AVX2__)
typedef uint64_t Words __attribute__((vector_size(32), aligned(8), may_alias));
inline Words multiply32(Words a, Words b) {
  return reinterpret_cast<Words>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
}
constexpr Words kFirstPairs = {0, 4, 1, 5}, kLastPairs = kFirstPairs + 2;
constexpr Words kLaneNumbers = {0, 1, 2, 3};
#else
typedef uint64_t Words __attribute__((vector_size(16), aligned(8), may_alias));
inline Words multiply32(Words a, Words b) {
  return reinterpret_cast<Words>(
      _mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
}
constexpr Words kFirstPairs = {0, 2}, kLastPairs = kFirstPairs + 1;
constexpr Words kLaneNumbers = {0, 1};
#endif

constexpr int kWordLanes = static_cast<int>(sizeof(Words) / 8);
constexpr int kWordVectors = 16 / kWordLanes;  // sixteen counters at a time hide the latencies

// Ten rounds over the counters in x0; the four words of each are left in x0 .. x3.
inline void philox_rounds(uint64_t key, Words* x0, Words* x1, Words* x2, Words* x3) {
  for (int v = 0; v < kWordVectors; ++v) {
    x1[v] = x0[v] >> 32;
    x2[v] = x3[v] = Words{};
  }
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  const Words m0 = Words{} + 0xD2511F53u, m1 = Words{} + 0xCD9E8D57u;
  for (int round = 0; round < 10; ++round) {
    for (int v = 0; v < kWordVectors; ++v) {
      const Words a = multiply32(x0[v], m0), b = multiply32(x2[v], m1);
      x0[v] = (b >> 32) ^ x1[v] ^ k0;
      x1[v] = b;
      x2[v] = (a >> 32) ^ x3[v] ^ k1;
      x3[v] = a;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

// words[4 * i + w] = word w for counter first + i, i < 16.
inline void philox16(uint64_t first, uint64_t key, uint32_t* words) {
  constexpr uint64_t kLow = 0xffffffffu;
  Words x0[kWordVectors], x1[kWordVectors], x2[kWordVectors], x3[kWordVectors];
  for (int v = 0; v < kWordVectors; ++v) {
    x0[v] = first + static_cast<uint64_t>(v * kWordLanes) + kLaneNumbers;
  }
  philox_rounds(key, x0, x1, x2, x3);
  for (int v = 0; v < kWordVectors; ++v) {
    const Words front = (x0[v] & kLow) | (x1[v] << 32), back = (x2[v] & kLow) | (x3[v] << 32);
    uint32_t* to = words + v * kWordLanes * 4;
    *reinterpret_cast<Words*>(to) = __builtin_shuffle(front, back, kFirstPairs);
    *reinterpret_cast<Words*>(to + kWordLanes * 2) = __builtin_shuffle(front, back, kLastPairs);
  }
}

// words[w * 16 + i] = word w for counter first + i * step, i < 16.
inline void philox16_strided(uint64_t first, uint64_t step, uint64_t key, uint32_t* words) {
  typedef uint32_t Halves __attribute__((vector_size(kWordLanes * 4), aligned(4), may_alias));
  Words x[4][kWordVectors] = {};
  for (int v = 0; v < kWordVectors; ++v) {
    for (int lane = 0; lane < kWordLanes; ++lane) {
      x[0][v][lane] = first + static_cast<uint64_t>(v * kWordLanes + lane) * step;
    }
  }
  philox_rounds(key, x[0], x[1], x[2], x[3]);
  for (int w = 0; w < 4; ++w) {
    for (int v = 0; v < kWordVectors; ++v) {
      *reinterpret_cast<Halves*>(words + w * 16 + v * kWordLanes) =
          __builtin_convertvector(x[w][v], Halves);
    }
  }
}

}  // namespace
}  // namespace mtl
