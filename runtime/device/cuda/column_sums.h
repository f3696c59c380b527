// Sums over the rows of a matrix in two stages: chunks of rows, cut by the shape alone, each by a
// block per 32 packs of columns; then combine() adds the chunks in order.
#pragma once

#include "runtime/device/cuda/kernels.h"

namespace mtl::cuda {

// use(load(i)) for i = first, first + step, ... below `end`, in order, with kAhead loads under way.
// (Of a loop that is merely unrolled ptxas asks for four or five loads, uses them, and then for the
// others.)
template <int kAhead, typename Load, typename Use>
__device__ inline void each_ahead(int first, int end, int step, Load load, Use use) {
  decltype(load(first)) coming[kAhead] = {};
  MTL_UNROLL_ALL
  for (int k = 0; k < kAhead; ++k) {
    if (first + k * step < end) coming[k] = load(first + k * step);
  }
  for (; first + (2 * kAhead - 1) * step < end; first += kAhead * step) {  // nothing to ask
    MTL_UNROLL_ALL
    for (int k = 0; k < kAhead; ++k) {
      use(coming[k]);
      coming[k] = load(first + (kAhead + k) * step);
    }
  }
  for (; first < end; first += kAhead * step) {
    MTL_UNROLL_ALL
    for (int k = 0; k < kAhead; ++k) {
      const int i = first + k * step;
      if (i < end) use(coming[k]);
      if (i + kAhead * step < end) coming[k] = load(i + kAhead * step);
    }
  }
}

// What a block's warps have summed up, each lane for N columns from first_column + lane * N on
// (below `cols`, a multiple of N), is added in the order of the warps, and becomes partials[(chunk
// * kOutputs + o) * cols + column].
template <int N, int kOutputs>
__device__ inline void add_warps(const Floats<N> (&sums)[kOutputs], int64_t first_column,
                                 int64_t cols, int64_t chunk, float* partials) {
  constexpr int kWidth = static_cast<int>(kWarp) * N;
  alignas(16) __shared__ float shared[kOutputs][kWarps][kWidth];
  const unsigned warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  // 16 bytes at once: of single ones the lanes' addresses are N apart, N to a bank.
  constexpr int kAtOnce = N < 4 ? N : 4;
  for (int o = 0; o < kOutputs; ++o) {
    for (int first = 0; first < N; first += kAtOnce) {
      Pack<float, kAtOnce> piece;
      for (int k = 0; k < kAtOnce; ++k) piece.at[k] = sums[o].at[first + k];
      *reinterpret_cast<Pack<float, kAtOnce>*>(
          &shared[o][warp][lane * N + static_cast<unsigned>(first)]) = piece;
    }
  }
  __syncthreads();
  const auto width = static_cast<int>(min(int64_t{kWidth}, cols - first_column));
  for (int i = static_cast<int>(threadIdx.x); i < kOutputs * width; i += kBlock) {
    const int o = i / width, c = i % width;
    float sum = shared[o][0][c];
    for (int w = 1; w < kWarps; ++w) sum += shared[o][w][c];
    partials[(chunk * kOutputs + o) * cols + first_column + c] = sum;
  }
}

// partials[(chunk * kOutputs + o) * cols + column] = the sums of what source.add<N>() adds to
// `sums` of source.load<N>(row, column) for the chunk's rows, which source.from(its first row)
// counts from 0: warp w takes rows w, w + 8, ..., and the warps are added in order. `cols` is a
// multiple of N.
template <int N, int kOutputs, typename Source>
__global__ void __launch_bounds__(kBlock, kOutputs == 1 ? 4 : 2)
    column_sums_kernel(Source source, int64_t rows, int64_t cols, int64_t rows_per_chunk,
                       float* partials) {
  constexpr int kWidth = static_cast<int>(kWarp) * N;
  const unsigned warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t first_column = int64_t{blockIdx.x} * kWidth;
  const auto column = static_cast<int>(first_column + lane * N);
  const int64_t begin = int64_t{blockIdx.y} * rows_per_chunk;
  const auto count = static_cast<int>(min(rows_per_chunk, rows - begin));
  Floats<N> sums[kOutputs];
  if (column < cols) {
    const Source here = source.from(begin);
    // With four blocks of a multiprocessor 64 KB are under way.
    each_ahead<4>(
        static_cast<int>(warp), count, kWarps,
        [&](int row) { return here.template load<N>(row, column); },
        [&](const auto& loaded) { here.add(loaded, sums); });
  }
  add_warps<N>(sums, first_column, cols, blockIdx.y, partials);
}

template <int N, int kOutputs, typename Source>
void column_sums(Queue& queue, const Source& source, int64_t rows, int64_t cols,
                 const RowChunks& chunks, float* partials) {
  const dim3 grid(static_cast<unsigned>(divide_up(cols, int64_t{kWarp} * N)),
                  static_cast<unsigned>(chunks.count));
  launch(column_sums_kernel<N, kOutputs, Source>, grid, dim3(kBlock), 0, queue.stream(), source,
         rows, cols, chunks.rows, partials);
}

}  // namespace mtl::cuda
