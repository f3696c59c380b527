// Sums in a fixed order, and the search for what is not finite. One pass each; bytes per element:
// bias_grad s (the size of dy's type), sum 4, sum_squares 4, find_not_finite s. Partial sums are
// few: less than 2 % of that from a thousand rows on.
#include "runtime/device/cuda/column_sums.h"
#include "runtime/device/cuda/kernels.h"

namespace mtl::cuda {

namespace {

constexpr int64_t kSumChunk = 8192;  // values of a block of sum, at least
constexpr int64_t kSumChunks = 1024;
constexpr int kChunkThreads = 128;  // of a block of sum_squares

// A block: 32 columns, by eight warps that take an eighth of the chunks each.
__global__ void __launch_bounds__(kBlock)
    combine_kernel(const float* partials, int64_t chunks, int64_t stride, int64_t cols, float* out,
                   bool accumulate) {
  __shared__ double shared[kWarps][kWarp];
  const unsigned warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t share = (chunks + kWarps - 1) / kWarps;
  const int64_t begin = warp * share, end = min(begin + share, chunks);
  const int64_t column = int64_t{blockIdx.x} * kWarp + lane;
  double sum = 0;
  if (column < cols) {
    MTL_UNROLL(8)
    for (int64_t i = begin; i < end; ++i) {
      sum += static_cast<double>(partials[i * stride + column]);
    }
  }
  shared[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= cols) return;
  for (int w = 1; w < kWarps; ++w) sum += shared[w][lane];
  if (accumulate) sum += static_cast<double>(out[column]);
  out[column] = static_cast<float>(sum);
}

template <typename T>
struct Rows {
  const T* x;
  int64_t cols;
  template <int N>
  __device__ void add(int64_t row, int64_t column, Floats<N> (&sums)[1]) const {
    const Floats<N> values = load<N>(x + row * cols + column);
    for (int k = 0; k < N; ++k) sums[0].at[k] += values.at[k];
  }
};

// The sum over a block, on its first thread.
template <int kThreads>
__device__ double block_sum(double value) {
  __shared__ double shared[kThreads / kWarp];
  value = warp_sum(value);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
  __syncthreads();
  if (threadIdx.x != 0) return 0;
  double sum = 0;
  for (unsigned w = 0; w < kThreads / kWarp; ++w) sum += shared[w];
  return sum;
}

// out[chunk] (+)= the sum of x[chunk * length ..]; thread t takes values t, t + 256, ...
template <typename T>
__global__ void __launch_bounds__(kBlock)
    sum_kernel(const T* x, int64_t n, int64_t length, double* out, bool accumulate) {
  const int64_t begin = int64_t{blockIdx.x} * length, end = min(begin + length, n);
  double sum = 0;
  MTL_UNROLL(8)
  for (int64_t i = begin + threadIdx.x; i < end; i += kBlock) sum += static_cast<double>(x[i]);
  sum = block_sum<kBlock>(sum);
  if (threadIdx.x == 0) out[blockIdx.x] = accumulate ? out[blockIdx.x] + sum : sum;
}

// A block per chunk; thread t takes the quads t, t + 128, ... of it, whether it can load four
// values at once (N = 4) or not, so that the bits do not depend on the address. Squares of f32 are
// exact in f64.
template <int N>
__global__ void __launch_bounds__(kChunkThreads)
    sum_squares_kernel(const float* x, int64_t n, double* partials) {
  constexpr int64_t kChunk = Device::kNormChunk;
  const int64_t chunks = (n + kChunk - 1) / kChunk;
  for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    const float* const values = x + chunk * kChunk;
    const auto count = static_cast<int>(min(n - chunk * kChunk, kChunk));
    double sum = 0;
    MTL_UNROLL(8)
    for (int i = static_cast<int>(threadIdx.x) * 4; i < static_cast<int>(kChunk);
         i += kChunkThreads * 4) {
      if (i + 4 <= count) {
        Floats<4> quad;
        for (int k = 0; k < 4; k += N) {
          const Floats<N> part = load<N>(values + i + k);
          for (int j = 0; j < N; ++j) quad.at[k + j] = part.at[j];
        }
        for (int k = 0; k < 4; ++k) {
          const auto d = static_cast<double>(quad.at[k]);
          sum += d * d;
        }
      } else {
        for (int k = i; k < count; ++k) {
          const auto d = static_cast<double>(values[k]);
          sum += d * d;
        }
      }
    }
    sum = block_sum<kChunkThreads>(sum);
    if (threadIdx.x == 0) partials[chunk] = sum;
  }
}

template <typename T>
struct FindNotFinite {
  const T* x;
  int32_t* found;
  template <int N>
  __device__ void at(int64_t i) const {
    const Floats<N> values = load<N>(x + i);
    bool finite = true;
    for (int k = 0; k < N; ++k) {
      finite = finite && fabsf(values.at[k]) <= 3.402823466e38f;  // no NaN is
    }
    if (!finite) atomicOr(found, 1);
  }
};

struct Clear {
  int32_t* x;
  template <int N>
  __device__ void at(int64_t i) const {
    for (int k = 0; k < N; ++k) x[i + k] = 0;
  }
};

}  // namespace

void combine(Queue& queue, const float* partials, int64_t chunks, int64_t stride, int64_t cols,
             float* out, bool accumulate) {
  launch(combine_kernel, dim3(static_cast<unsigned>(divide_up(cols, kWarp))), dim3(kBlock), 0,
         queue.stream(), partials, chunks, stride, cols, out, accumulate);
}

void bias_grad(Queue& queue, Tensor dy, Tensor db, bool accumulate) {
  const int64_t rows = dy.rows(), cols = dy.cols();
  const RowChunks chunks = column_chunks(rows, cols);
  auto* partials =
      static_cast<float*>(queue.scratch(static_cast<size_t>(chunks.count * cols) * sizeof(float)));
  with_type(dy.dtype, [&](auto type) {
    using T = decltype(type);
    const bool packs = aligned({dy.data}) && cols % kPackOf<T> == 0;
    with_pack<kPackOf<T>>(packs, [&](auto pack) {
      column_sums<decltype(pack)::value, 1>(queue, Rows<T>{dy.as<const T>(), cols}, rows, cols,
                                            chunks, partials);
    });
  });
  combine(queue, partials, chunks.count, cols, cols, db.as<float>(), accumulate);
}

void sum(Queue& queue, Tensor x, Tensor out, bool accumulate) {
  const int64_t n = x.numel();
  const int64_t length = std::max(kSumChunk, divide_up(n, kSumChunks));
  const int64_t chunks = divide_up(n, length);
  const dim3 one(1), block(kBlock);
  if (chunks <= 1) {
    launch(sum_kernel<float>, one, block, 0, queue.stream(), x.as<const float>(), n, length,
           out.as<double>(), accumulate);
    return;
  }
  auto* partials =
      static_cast<double*>(queue.scratch(static_cast<size_t>(chunks) * sizeof(double)));
  launch(sum_kernel<float>, dim3(static_cast<unsigned>(chunks)), block, 0, queue.stream(),
         x.as<const float>(), n, length, partials, false);
  launch(sum_kernel<double>, one, block, 0, queue.stream(), partials, chunks, chunks,
         out.as<double>(), accumulate);
}

void sum_squares(Queue& queue, Tensor x, Tensor partials) {
  const int64_t n = x.numel();
  with_pack<4>(aligned({x.data}), [&](auto pack) {
    launch(sum_squares_kernel<decltype(pack)::value>,
           blocks_for(queue, divide_up(n, Device::kNormChunk), 1), dim3(kChunkThreads), 0,
           queue.stream(), x.as<const float>(), n, partials.as<double>());
  });
}

void find_not_finite(Queue& queue, Tensor x, Tensor found) {
  each<1>(queue, 1, Clear{found.as<int32_t>()});
  with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    with_pack<kPackOf<T>>(aligned({x.data}), [&](auto pack) {
      each<decltype(pack)::value>(queue, x.numel(),
                                  FindNotFinite<T>{x.as<const T>(), found.as<int32_t>()});
    });
  });
}

}  // namespace mtl::cuda
