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
template <bool kE5m2, int N>
__device__ inline Pack<uint8_t, N> float8_of(const Floats<N>& x) {
  Pack<uint8_t, N> codes;
#if defined(__CUDACC__)
  constexpr __nv_fp8_interpretation_t kFormat = kE5m2 ? __NV_E5M2 : __NV_E4M3;
  if constexpr (N % 2 == 0) {
    for (int k = 0; k < N; k += 2) {
      const __nv_fp8x2_storage_t both =
          __nv_cvt_float2_to_fp8x2(make_float2(x.at[k], x.at[k + 1]), __NV_SATFINITE, kFormat);
      codes.at[k] = static_cast<uint8_t>(both & 0xffu);
      codes.at[k + 1] = static_cast<uint8_t>(both >> 8);
    }
  } else {
    for (int k = 0; k < N; ++k) {
      codes.at[k] = __nv_cvt_float_to_fp8(x.at[k], __NV_SATFINITE, kFormat);
    }
  }
#else
  for (int k = 0; k < N; ++k) {
    codes.at[k] = kE5m2 ? f32_to_e5m2(x.at[k]) : f32_to_e4m3(x.at[k]);
  }
#endif
  return codes;
}

template <typename T>
struct Tiles {
  const T* x;
  const float* amax;
  uint8_t *y, *transposed;  // either may be null
  float* inverse;
  int64_t rows, cols, tiles_across;
  int64_t length;  // of a row of `transposed`: as many as there are rows, or more
};

constexpr int kTile = 64;
// Rows of a tile in shared memory, four bytes apart: what a warp writes at once lies in as many
// banks as its rows of eight columns allow.
constexpr int kTileStride = kTile + 4;

// A block per tile of 64 x 64. N elements of a row at once, and N of a column of the result.
template <typename T, bool kE5m2, int N>
__global__ void __launch_bounds__(kBlock) quantize_kernel(Tiles<T> a) {
  alignas(4) __shared__ uint8_t tile[kTile][kTileStride];
  constexpr int kAcross = kTile / N;
  const int64_t row0 = int64_t{blockIdx.x} / a.tiles_across * kTile;
  const int64_t column0 = int64_t{blockIdx.x} % a.tiles_across * kTile;
  const float amax = *a.amax;
  const float scale = float8_scale(amax, kE5m2 ? kLargestE5m2 : kLargestE4m3);
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kAcross; i += kBlock) {
    const int r = i / kAcross, c = i % kAcross * N;
    if (column0 + c >= a.cols) continue;
    if (row0 + r >= a.rows) {
      for (int k = 0; k < N; ++k) tile[c + k][r] = 0;
      continue;
    }
    const int64_t at = (row0 + r) * a.cols + column0 + c;
    Floats<N> values = load<N>(a.x + at);
    for (int k = 0; k < N; ++k) values.at[k] *= scale;
    const Pack<uint8_t, N> codes = float8_of<kE5m2>(values);
    if (a.y != nullptr) *reinterpret_cast<Pack<uint8_t, N>*>(a.y + at) = codes;
    for (int k = 0; k < N; ++k) tile[c + k][r] = codes.at[k];
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) *a.inverse = float8_inverse(amax, scale);
  if (a.transposed == nullptr) return;
  __syncthreads();
  constexpr int kPiece = N < 4 ? N : 4;
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kAcross; i += kBlock) {
    const int c = i / kAcross, r = i % kAcross * N;
    if (row0 + r >= a.length || column0 + c >= a.cols) continue;
    Pack<uint8_t, N> codes;
    for (int first = 0; first < N; first += kPiece) {
      const auto piece = *reinterpret_cast<const Pack<uint8_t, kPiece>*>(&tile[c][r + first]);
      for (int k = 0; k < kPiece; ++k) codes.at[first + k] = piece.at[k];
    }
    const int64_t to = (column0 + c) * a.length + row0 + r;
    *reinterpret_cast<Pack<uint8_t, N>*>(a.transposed + to) = codes;
  }
}

template <typename T, bool kE5m2>
void start(Queue& queue, const Quantize& args) {
  constexpr int kPack = 8;
  const int64_t rows = args.x.rows(), cols = args.x.cols();
  const int64_t length = args.transposed ? args.transposed.cols() : rows;
  const int64_t across = divide_up(cols, kTile);
  const int64_t tiles = divide_up(length, kTile) * across;
  const Tiles<T> a = {.x = args.x.as<const T>(),
                      .amax = args.amax.as<const float>(),
                      .y = args.y.as<uint8_t>(),
                      .transposed = args.transposed.as<uint8_t>(),
                      .inverse = args.inverse.as<float>(),
                      .rows = rows,
                      .cols = cols,
                      .tiles_across = across,
                      .length = length};
  // A null pointer is aligned.
  const bool packs = cols % kPack == 0 && (!args.transposed || length % kPack == 0) &&
                     aligned({a.x}) && aligned({a.y, a.transposed}, kPack);
  with_pack<kPack>(packs, [&](auto pack) {
    launch(quantize_kernel<T, kE5m2, decltype(pack)::value>, dim3(static_cast<unsigned>(tiles)),
           dim3(kBlock), 0, queue.stream(), a);
  });
}

}  // namespace

void amax(Queue& queue, Tensor x, Tensor out) {
  with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    with_pack<kPackOf<T>>(aligned({x.data}), [&](auto pack) {
      constexpr int kN = decltype(pack)::value;
      const dim3 blocks = blocks_for(queue, x.numel(), int64_t{kBlock} * kN);
      auto* partials = static_cast<uint32_t*>(queue.scratch(blocks.x * sizeof(uint32_t)));
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
