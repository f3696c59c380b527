// Sums in a fixed order, and the search for what is not finite. One pass each; bytes per element:
// bias_grad s (the size of dy's type), sum_rows s and per sum 4 (8 where it adds), sum 4,
// sum_squares 4, normalize 3 s, find_not_finite s. Partial sums are few: less than 2 % of that from
// a thousand rows on.
#include "runtime/device/cuda/cells.h"
#include "runtime/device/cuda/column_sums.h"

namespace mtl::cuda {

namespace {

constexpr int64_t kSumChunk = 8192;  // values of a block of sum, at least
constexpr int64_t kSumChunks = 1024;
constexpr int kChunkThreads = 128;  // of a block of sum_squares

// A block: 32 columns, by eight warps that take an eighth of the chunks each. The blocks behind are
// those of `second`.
__global__ void __launch_bounds__(kBlock)
    combine_kernel(const float* partials, int64_t chunks, int64_t stride, int64_t cols, float* out,
                   bool accumulate, float* second) {
  if (blockIdx.y == 1) {
    partials += cols;
    out = second;
  }
  __shared__ double shared[kWarps][kWarp];
  const unsigned warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t share = (chunks + kWarps - 1) / kWarps;
  const int64_t begin = warp * share, end = min(begin + share, chunks);
  const int64_t column = int64_t{blockIdx.x} * kWarp + lane;
  double sum = 0;
  if (column < cols) {
    each_ahead<16>(
        static_cast<int>(begin), static_cast<int>(end), 1,
        [&](int i) { return partials[i * stride + column]; },
        [&](float partial) { sum += static_cast<double>(partial); });
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
  int cols;
  __device__ Rows from(int64_t row) const { return {x + row * cols, cols}; }
  template <int N>
  __device__ Pack<T, N> load(int row, int column) const {
    return *reinterpret_cast<const Pack<T, N>*>(x + int64_t{row} * cols + column);
  }
  template <int N>
  __device__ void add(const Pack<T, N>& loaded, Floats<N> (&sums)[1]) const {
    const Floats<N> values = widened(loaded);
    for (int k = 0; k < N; ++k) sums[0].at[k] += values.at[k];
  }
};

// Few rows of many columns: a thread has its columns of all of them.
template <typename T>
struct LongRows {
  const T* x;
  int64_t rows, cols;
  float* sum;
  bool accumulate;
  template <int N>
  __device__ void at(int64_t i) const {
    Floats<N> total;
    if (accumulate) total = load<N>(sum + i);
    MTL_UNROLL(4)
    for (int64_t row = 0; row < rows; ++row) {
      const Floats<N> values = load<N>(x + row * cols + i);
      for (int k = 0; k < N; ++k) total.at[k] += values.at[k];
    }
    store(sum + i, total);
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

// What thread t adds of a cell: the quads t, t + 128, ... of it, whether it can load four values at
// once (N = 4) or not, so that the bits do not depend on the address. Squares of f32 are exact in
// f64.
template <int N>
__device__ double squares_of(const float* values, int count) {
  double sum = 0;
  MTL_UNROLL(8)
  for (int i = static_cast<int>(threadIdx.x) * 4; i < static_cast<int>(kNormChunk);
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
  return sum;
}

// A block per cell. `packs`: x is aligned.
__global__ void __launch_bounds__(kChunkThreads)
    sum_squares_kernel(const float* x, CellTable table, double* partials, bool packs) {
  for (int64_t index = blockIdx.x; index < table.cells; index += gridDim.x) {
    const Cell cell = table.cell(index);
    const float* const values = x + cell.begin;
    const double mine = packs && cell.begin % 4 == 0 ? squares_of<4>(values, cell.count)
                                                     : squares_of<1>(values, cell.count);
    const double sum = block_sum<kChunkThreads>(mine);
    if (threadIdx.x == 0) partials[cell.piece.partial + cell.behind] = sum;
  }
}

// sums[block] = the sum of squares of x[block * length ..]; thread t takes values t, t + 256, ...
template <typename T>
__global__ void __launch_bounds__(kBlock)
    chunk_squares_kernel(const T* x, int64_t n, int64_t length, double* sums) {
  const int64_t begin = int64_t{blockIdx.x} * length, end = min(begin + length, n);
  double sum = 0;
  MTL_UNROLL(8)
  for (int64_t i = begin + threadIdx.x; i < end; i += kBlock) {
    const auto value = static_cast<double>(load<1>(x + i).at[0]);
    sum += value * value;
  }
  sum = block_sum<kBlock>(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// What thread t of a block adds: values t, t + 256, ...
__device__ double strided_sum(const double* x, int64_t n) {
  double sum = 0;
  MTL_UNROLL(8)
  for (int64_t i = threadIdx.x; i < n; i += kBlock) sum += x[i];
  return sum;
}

// A block per range.
__global__ void __launch_bounds__(kBlock)
    sum_ranges_kernel(const double* x, const ElementRange* ranges, int64_t n, double* out) {
  for (int64_t i = blockIdx.x; i < n; i += gridDim.x) {
    const ElementRange range = ranges[i];
    const double sum = block_sum<kBlock>(strided_sum(x + range.first, range.count));
    if (threadIdx.x == 0) out[i] = sum;
  }
}

// Every block adds up all the chunks (few, and the same bits everywhere) and divides its own share.
template <typename T>
__global__ void __launch_bounds__(kBlock)
    divide_by_norm_kernel(T* x, int64_t n, const double* sums, int64_t chunks) {
  __shared__ float factor;
  const double total = block_sum<kBlock>(strided_sum(sums, chunks));
  if (threadIdx.x == 0) factor = static_cast<float>(1 / fmax(sqrt(total), kLeastNorm));
  __syncthreads();
  const int64_t step = int64_t{gridDim.x} * kBlock;
  for (int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x; i < n; i += step) {
    Floats<1> value = load<1>(x + i);
    value.at[0] *= factor;
    store(x + i, value);
  }
}

struct ScaleNumbers {
  const double *row_squares, *loss, *counted;
  double* norm;
  float* factor;
  int64_t rows;
  double tokens, loss_scale, clip;
};

__device__ bool is_finite(double x) {
  return fabs(x) <= 1.7976931348623157e308;  // no NaN is
}

// One block; the arithmetic is that of the CPU engine, behind the sum.
__global__ void __launch_bounds__(kBlock) gradient_scale_kernel(ScaleNumbers numbers) {
  const double total = block_sum<kBlock>(strided_sum(numbers.row_squares, numbers.rows));
  if (threadIdx.x != 0) return;
  const double counted = *numbers.counted;
  const double correction = counted > 0 ? numbers.tokens / counted : 0.0;
  const double norm = sqrt(total) / numbers.loss_scale * correction;
  double factor = 1;
  if (numbers.clip > 0) factor = fmin(1.0, numbers.clip / (norm + 1e-6));
  factor /= numbers.loss_scale;
  factor *= correction;
  *numbers.norm = norm;
  const bool finite = is_finite(*numbers.loss) && is_finite(norm);
  *numbers.factor = finite ? static_cast<float>(factor) : nanf("");
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
             float* out, bool accumulate, float* second) {
  const dim3 grid(static_cast<unsigned>(divide_up(cols, kWarp)), second != nullptr ? 2 : 1);
  launch(combine_kernel, grid, dim3(kBlock), 0, queue.stream(), partials, chunks, stride, cols, out,
         accumulate, second);
}

void bias_grad(Queue& queue, Tensor dy, Tensor db, bool accumulate) {
  const int64_t rows = dy.rows(), cols = dy.cols();
  const RowChunks chunks = kernel_scratch::column_chunks(rows, cols);
  auto* partials = static_cast<float*>(queue.scratch(kernel_scratch::column_sums(rows, cols)));
  with_type(dy.dtype, [&](auto type) {
    using T = decltype(type);
    const bool packs = aligned({dy.data}) && cols % kPackOf<T> == 0;
    with_pack<kPackOf<T>>(packs, [&](auto pack) {
      column_sums<decltype(pack)::value, 1>(
          queue, Rows<T>{dy.as<const T>(), static_cast<int>(cols)}, rows, cols, chunks, partials);
    });
  });
  combine(queue, partials, chunks.count, cols, cols, db.as<float>(), accumulate);
}

void sum_rows(Queue& queue, Tensor rows, Tensor sum, bool accumulate) {
  with_type(rows.dtype, [&](auto type) {
    using T = decltype(type);
    const int64_t cols = rows.cols();
    const bool packs = aligned({rows.data, sum.data}) && cols % kPackOf<T> == 0;
    with_pack<kPackOf<T>>(packs, [&](auto pack) {
      each<decltype(pack)::value>(
          queue, cols,
          LongRows<T>{rows.as<const T>(), rows.rows(), cols, sum.as<float>(), accumulate});
    });
  });
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
  auto* partials = static_cast<double*>(queue.scratch(chunks * int64_t{sizeof(double)}));
  launch(sum_kernel<float>, dim3(static_cast<unsigned>(chunks)), block, 0, queue.stream(),
         x.as<const float>(), n, length, partials, false);
  launch(sum_kernel<double>, one, block, 0, queue.stream(), partials, chunks, chunks,
         out.as<double>(), accumulate);
}

void normalize(Queue& queue, Tensor x) {
  const int64_t n = x.numel();
  const int64_t length = std::max(kSumChunk, divide_up(n, kSumChunks));
  const int64_t chunks = divide_up(n, length);
  auto* sums = static_cast<double*>(queue.scratch(chunks * int64_t{sizeof(double)}));
  with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    launch(chunk_squares_kernel<T>, dim3(static_cast<unsigned>(chunks)), dim3(kBlock), 0,
           queue.stream(), x.as<const T>(), n, length, sums);
    launch(divide_by_norm_kernel<T>, blocks_for(queue, n, kBlock), dim3(kBlock), 0, queue.stream(),
           x.as<T>(), n, sums, chunks);
  });
}

void sum_squares(Queue& queue, const SumSquares& args) {
  const CellTable table(args.pieces);
  launch(sum_squares_kernel, blocks_for(queue, table.cells, 1), dim3(kChunkThreads), 0,
         queue.stream(), args.x.as<const float>(), table, args.partials.as<double>(),
         aligned({args.x.data}));
}

void sum_ranges(Queue& queue, Tensor x, Tensor ranges, Tensor out) {
  launch(sum_ranges_kernel, blocks_for(queue, out.numel(), 1), dim3(kBlock), 0, queue.stream(),
         x.as<const double>(), ranges.as<const ElementRange>(), out.numel(), out.as<double>());
}

void gradient_scale(Queue& queue, const GradientScale& args) {
  ScaleNumbers numbers = {};
  numbers.row_squares = args.row_squares.as<const double>();
  numbers.loss = args.loss.as<const double>();
  numbers.counted = args.counted.as<const double>();
  numbers.norm = args.norm.as<double>();
  numbers.factor = args.factor.as<float>();
  numbers.rows = args.row_squares.numel();
  numbers.tokens = args.tokens;
  numbers.loss_scale = args.loss_scale;
  numbers.clip = args.clip;
  launch(gradient_scale_kernel, dim3(1), dim3(kBlock), 0, queue.stream(), numbers);
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
