// Small products of blocks that lie in a cache: C[m,n] (+)= A[m,k] * B[k,n], all row-major, m and n
// multiples of 32, k of 32. Two flavours, chosen by the element type of the packed operands:
//   float     vector registers of this instruction set
//   uint16_t  bf16 on AMX tiles; B has pairs of rows interleaved: [k/2][n][2]
#pragma once

#include <cstdint>

namespace mtl {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16, kRows = 8;
#elif defined(__AVX__)
constexpr int kLanes = 8, kRows = 4;
#else
constexpr int kLanes = 4, kRows = 4;
#endif
typedef float Vector __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

// kRows x 2 vectors of C stay in registers over the whole of k.
inline void gemm(const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc,
                 int64_t m, int64_t n, int64_t k, bool accumulate) {
  for (int64_t j = 0; j < n; j += 2 * kLanes) {
    for (int64_t i = 0; i < m; i += kRows) {
      Vector sum[kRows][2];
      for (int r = 0; r < kRows; ++r) {
        float* row = c + (i + r) * ldc + j;
        for (int v = 0; v < 2; ++v) {
          sum[r][v] = accumulate ? *reinterpret_cast<Vector*>(row + v * kLanes) : Vector{};
        }
      }
      const float* rows = a + i * lda;
      for (int64_t p = 0; p < k; ++p) {
        const Vector b0 = *reinterpret_cast<const Vector*>(b + p * ldb + j);
        const Vector b1 = *reinterpret_cast<const Vector*>(b + p * ldb + j + kLanes);
        for (int r = 0; r < kRows; ++r) {
          const float x = rows[r * lda + p];
          sum[r][0] += x * b0;
          sum[r][1] += x * b1;
        }
      }
      for (int r = 0; r < kRows; ++r) {
        float* row = c + (i + r) * ldc + j;
        for (int v = 0; v < 2; ++v) *reinterpret_cast<Vector*>(row + v * kLanes) = sum[r][v];
      }
    }
  }
}

#if defined(__AVX512F__)

// The tile instructions by hand: the compiler's intrinsics do not order loads after plain stores,
// and its flags would let tile code leak into functions that run without AMX.
#define MTL_TILE_LOAD(tile, pointer, stride) \
  asm volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(pointer), "r"(stride) : "memory")
#define MTL_TILE_STORE(tile, pointer, stride) \
  asm volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(pointer), "r"(stride) : "memory")
#define MTL_TILE_ZERO(tile) asm volatile("tilezero %%tmm" #tile ::)
#define MTL_TILE_DOT(c, a, b) asm volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

struct TileConfig {
  alignas(64) uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes_per_row[16] = {};
  uint8_t rows[16] = {};
};

// All eight tiles are 16 rows of 64 bytes. Tile registers belong to the thread until it releases
// them; oneDNN loads its own configuration before each of its kernels.
class Tiles {
 public:
  Tiles() {
    TileConfig config;
    for (int i = 0; i < 8; ++i) {
      config.bytes_per_row[i] = 64;
      config.rows[i] = 16;
    }
    asm volatile("ldtilecfg %0" ::"m"(config) : "memory");
  }
  ~Tiles() { asm volatile("tilerelease" ::); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

inline void gemm(const uint16_t* a, int64_t lda, const uint16_t* b, int64_t ldb, float* c,
                 int64_t ldc, int64_t m, int64_t n, int64_t k, bool accumulate) {
  const int64_t stride_a = lda * 2, stride_b = ldb * 4, stride_c = ldc * 4;  // bytes
  for (int64_t i = 0; i < m; i += 32) {
    for (int64_t j = 0; j < n; j += 32) {
      float* c00 = c + i * ldc + j;
      float* c10 = c00 + 16 * ldc;
      if (accumulate) {
        MTL_TILE_LOAD(0, c00, stride_c);
        MTL_TILE_LOAD(1, c00 + 16, stride_c);
        MTL_TILE_LOAD(2, c10, stride_c);
        MTL_TILE_LOAD(3, c10 + 16, stride_c);
      } else {
        MTL_TILE_ZERO(0);
        MTL_TILE_ZERO(1);
        MTL_TILE_ZERO(2);
        MTL_TILE_ZERO(3);
      }
      for (int64_t p = 0; p < k; p += 32) {
        const uint16_t* a0 = a + i * lda + p;
        const uint16_t* b0 = b + (p / 2) * ldb * 2 + j * 2;
        MTL_TILE_LOAD(4, a0, stride_a);
        MTL_TILE_LOAD(6, b0, stride_b);
        MTL_TILE_DOT(0, 4, 6);
        MTL_TILE_LOAD(7, b0 + 32, stride_b);
        MTL_TILE_DOT(1, 4, 7);
        MTL_TILE_LOAD(5, a0 + 16 * lda, stride_a);
        MTL_TILE_DOT(2, 5, 6);
        MTL_TILE_DOT(3, 5, 7);
      }
      MTL_TILE_STORE(0, c00, stride_c);
      MTL_TILE_STORE(1, c00 + 16, stride_c);
      MTL_TILE_STORE(2, c10, stride_c);
      MTL_TILE_STORE(3, c10 + 16, stride_c);
    }
  }
}

#undef MTL_TILE_LOAD
#undef MTL_TILE_STORE
#undef MTL_TILE_ZERO
#undef MTL_TILE_DOT

#endif  // __AVX512F__

}  // namespace
}  // namespace mtl
