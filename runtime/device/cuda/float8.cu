// amax and quantize: what products in FP8 are given. Bytes per element, with s the size of the
// type: amax s, quantize s and 1 for each orientation. amax is two launches, quantize one.
#include "common/float8.h"
#include "runtime/device/cuda/amax.h"

#if defined(__CUDACC__)
#include <cuda_fp8.h>
#endif

namespace mtl::cuda {

namespace {

// Each block's maximum.
template <typename T, int N>
__global__ void __launch_bounds__(kBlock) amax_kernel(const T* x, int64_t n, uint32_t* partials) {
  uint32_t largest = 0;
  const int64_t stride = int64_t{gridDim.x} * kBlock * N;
  for (int64_t i = (int64_t{blockIdx.x} * kBlock + threadIdx.x) * N; i < n; i += stride) {
    if (i + N <= n) {
      const Floats<N> values = load<N>(x + i);
      for (int k = 0; k < N; ++k) largest = max(largest, magnitude_bits(values.at[k]));
    } else {
      for (int64_t k = i; k < n; ++k) largest = max(largest, magnitude_bits(to_float(x[k])));
    }
  }
  largest = block_max<kBlock>(largest);
  if (threadIdx.x == 0) partials[blockIdx.x] = largest;
}

// One block: the maximum of all, which are bits of floats.
__global__ void __launch_bounds__(kBlock)
    amax_of_blocks_kernel(const uint32_t* partials, int blocks, uint32_t* out) {
  uint32_t largest = 0;
  for (int i = static_cast<int>(threadIdx.x); i < blocks; i += kBlock) {
    largest = max(largest, partials[i]);
  }
  largest = block_max<kBlock>(largest);
  if (threadIdx.x == 0) *out = largest;
}

// To nearest even, saturated.
template <bool kE5m2>
__device__ inline uint8_t float8_of(float x) {
#if defined(__CUDACC__)
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, kE5m2 ? __NV_E5M2 : __NV_E4M3);
#else
  return kE5m2 ? f32_to_e5m2(x) : f32_to_e4m3(x);
#endif
}
// Two, the first in the lower half.
template <bool kE5m2>
__device__ inline uint32_t two_float8_of(float low, float high) {
#if defined(__CUDACC__)
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE,
                                  kE5m2 ? __NV_E5M2 : __NV_E4M3);
#else
  return uint32_t{float8_of<kE5m2>(high)} << 8 | float8_of<kE5m2>(low);
#endif
}

// 4 x 4 bytes turned: byte i of word j becomes byte j of word i.
__device__ inline void transpose_bytes(uint32_t (&w)[4]) {
  const uint32_t a = __byte_perm(w[0], w[1], 0x5140), b = __byte_perm(w[0], w[1], 0x7362);
  const uint32_t c = __byte_perm(w[2], w[3], 0x5140), d = __byte_perm(w[2], w[3], 0x7362);
  w[0] = __byte_perm(a, c, 0x5410);
  w[1] = __byte_perm(a, c, 0x7632);
  w[2] = __byte_perm(b, d, 0x5410);
  w[3] = __byte_perm(b, d, 0x7632);
}

template <typename T>
struct QuantizeArgs {
  const T* x;
  const float* amax;
  uint8_t *y, *transposed;  // either may be null
  float* inverse;
  int64_t rows, cols;
  int64_t length;  // of a row of `transposed`: as many as there are rows, or more
  unsigned tiles_across, tiles;
};

// What elements are multiplied by; a thread leaves what undoes it.
template <bool kE5m2, typename T>
__device__ inline float scale_of(const QuantizeArgs<T>& a) {
  const float amax = *a.amax;
  const float scale = float8_scale(amax, kE5m2 ? kLargestE5m2 : kLargestE4m3);
  if (blockIdx.x == 0 && threadIdx.x == 0) *a.inverse = float8_inverse(amax, scale);
  return scale;
}

// Tiles, of which a thread has a patch that it turns in registers: in shared memory alone that is a
// store and a load for every byte, and slower than the memory.
constexpr int kTileRows = 128, kTileCols = 64, kPatchRows = 4, kPatchCols = 8;
constexpr int kPiece = 16;  // bytes of a row of `transposed` that are written at once
static_assert(kBlock == kTileRows / kPatchRows * (kTileCols / kPatchCols));

// A turned tile has a row for each column. Piece p of it lies at p ^ (column / kPatchCols), so that
// the words of a warp, four of each of eight patches side by side, lie in as many banks.
__device__ inline int turned_at(int column, int row) {
  return column * kTileRows + ((row / kPiece) ^ (column / kPatchCols)) * kPiece + row % kPiece;
}

template <typename T, bool kE5m2>
__global__ void __launch_bounds__(kBlock) quantize_tiles_kernel(QuantizeArgs<T> a) {
  // Two in turn, so that one barrier is enough.
  alignas(kPiece) __shared__ uint8_t shared[2][kTileCols * kTileRows];
  constexpr int kAcross = kTileCols / kPatchCols;
  const float scale = scale_of<kE5m2>(a);
  const int me = static_cast<int>(threadIdx.x);
  const int r = me / kAcross * kPatchRows, c = me % kAcross * kPatchCols;
  unsigned turn = 0;
  for (unsigned number = blockIdx.x; number < a.tiles; number += gridDim.x) {
    const int64_t row0 = int64_t{number / a.tiles_across} * kTileRows;
    const int64_t column0 = int64_t{number % a.tiles_across} * kTileCols;
    const auto rows = static_cast<int>(min(a.rows - row0, int64_t{kTileRows}));
    const auto columns = static_cast<int>(min(a.cols - column0, int64_t{kTileCols}));
    uint8_t* const tile = shared[turn++ % 2];
    if (c < columns) {
      const int64_t at = (row0 + r) * a.cols + column0 + c;
      // All loads before the first store, which nvcc lets none overtake.
      Floats<kPatchCols> x[kPatchRows];
      MTL_UNROLL()
      for (int j = 0; j < kPatchRows; ++j) {
        if (r + j < rows) x[j] = load<kPatchCols>(a.x + at + j * a.cols);
      }
      uint32_t words[2][kPatchRows] = {};  // of the left half, of the right one
      MTL_UNROLL()
      for (int j = 0; j < kPatchRows; ++j) {
        if (r + j >= rows) continue;
        for (int half = 0; half < 2; ++half) {
          const float* const four = x[j].at + 4 * half;
          words[half][j] = two_float8_of<kE5m2>(four[0] * scale, four[1] * scale) |
                           two_float8_of<kE5m2>(four[2] * scale, four[3] * scale) << 16;
        }
        if (a.y != nullptr) store_words(a.y + at + j * a.cols, {words[0][j], words[1][j]});
      }
      if (a.transposed != nullptr) {
        MTL_UNROLL()
        for (int half = 0; half < 2; ++half) {
          transpose_bytes(words[half]);
          for (int k = 0; k < 4; ++k) {
            store_words(tile + turned_at(c + 4 * half + k, r), {words[half][k]});
          }
        }
      }
    }
    if (a.transposed == nullptr) continue;
    __syncthreads();
    constexpr int kPieces = kTileRows / kPiece;
    const auto length = static_cast<int>(min(a.length - row0, int64_t{kTileRows}));
    MTL_UNROLL()
    for (int i = 0; i < kTileCols * kPieces; i += kBlock) {
      const int column = (i + me) / kPieces, row = me % kPieces * kPiece;
      if (row >= length || column >= columns) continue;
      const auto piece = *reinterpret_cast<const Pack<uint32_t, 4>*>(tile + turned_at(column, row));
      store_words(a.transposed + (column0 + column) * a.length + row0 + row,
                  {piece.at[0], piece.at[1], piece.at[2], piece.at[3]});
    }
  }
}

// The same for what no tile fits: an element at a time.
template <typename T, bool kE5m2>
__global__ void __launch_bounds__(kBlock) quantize_kernel(QuantizeArgs<T> a) {
  const float scale = scale_of<kE5m2>(a);
  const int64_t threads = int64_t{gridDim.x} * kBlock;
  const int64_t rows = a.transposed != nullptr ? a.length : a.rows;
  for (int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x; i < rows * a.cols; i += threads) {
    const int64_t row = i / a.cols;
    const uint8_t code = row < a.rows ? float8_of<kE5m2>(to_float(a.x[i]) * scale) : uint8_t{0};
    if (a.y != nullptr && row < a.rows) a.y[i] = code;
    if (a.transposed != nullptr) a.transposed[i % a.cols * a.length + row] = code;
  }
}

template <typename T, bool kE5m2>
void start(Queue& queue, const Quantize& args) {
  const int64_t rows = args.x.rows(), cols = args.x.cols();
  const int64_t length = args.transposed ? args.transposed.cols() : rows;
  const int64_t across = divide_up(cols, kTileCols);
  const int64_t tiles = divide_up(length, kTileRows) * across;
  const QuantizeArgs<T> a = {.x = args.x.as<const T>(),
                             .amax = args.amax.as<const float>(),
                             .y = args.y.as<uint8_t>(),
                             .transposed = args.transposed.as<uint8_t>(),
                             .inverse = args.inverse.as<float>(),
                             .rows = rows,
                             .cols = cols,
                             .length = length,
                             .tiles_across = static_cast<unsigned>(across),
                             .tiles = static_cast<unsigned>(tiles)};
  // A null pointer is aligned.
  const bool fits = cols % kPatchCols == 0 && (!args.transposed || length % kPiece == 0) &&
                    aligned({a.x, a.transposed}) && aligned({a.y}, kPatchCols);
  if (fits) {
    launch(quantize_tiles_kernel<T, kE5m2>, blocks_for(queue, tiles, 1), dim3(kBlock), 0,
           queue.stream(), a);
  } else {
    launch(quantize_kernel<T, kE5m2>, blocks_for(queue, length * cols, kBlock), dim3(kBlock), 0,
           queue.stream(), a);
  }
}

}  // namespace

void amax(Queue& queue, Tensor x, Tensor out) {
  with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    with_pack<kPackOf<T>>(aligned({x.data}), [&](auto pack) {
      constexpr int kN = decltype(pack)::value;
      const dim3 blocks = blocks_for(queue, x.numel(), int64_t{kBlock} * kN);
      auto* partials = static_cast<uint32_t*>(queue.scratch(int64_t{blocks.x} * 4));
      launch(amax_kernel<T, kN>, blocks, dim3(kBlock), 0, queue.stream(), x.as<const T>(),
             x.numel(), partials);
      launch(amax_of_blocks_kernel, dim3(1), dim3(kBlock), 0, queue.stream(), partials,
             static_cast<int>(blocks.x), out.as<uint32_t>());
    });
  });
}

void quantize(Queue& queue, const Quantize& args) {
  const bool e5m2 = (args.y ? args.y : args.transposed).dtype == DType::f8_e5m2;
  with_type(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    if (e5m2) {
      start<T, true>(queue, args);
    } else {
      start<T, false>(queue, args);
    }
  });
}

}  // namespace mtl::cuda
