// Learned positions and their gradient: one pass. Bytes per element, with s the size of the type:
// position_forward 2 s (dropout.cu), position_backward 2 s, and 4 (8 to accumulate) per element of
// dpositions.
#include "runtime/device/cuda/add_rows.h"

namespace mtl::cuda {

namespace {

template <typename T>
struct Backward {
  const T* dout;
  T* dx;
  float* dpositions;
  int64_t rows, cols, seq, first_row;
  bool accumulate;
  EnqueuedMask mask;
};

// A thread: N columns of one position, all rows that have it in order. The rows 0 .. seq - 1 have
// different positions; those from `rows` on are positions that no row has.
template <typename T, int N, bool kMasked>
__global__ void __launch_bounds__(kBlock) position_backward_kernel(Backward<T> a) {
  const int64_t column = (int64_t{blockIdx.y} * kWarp + threadIdx.x % kWarp) * N;
  if (column >= a.cols) return;
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  Mask mask;
  if constexpr (kMasked) {
    mask = mask_of(a.mask);
    mask.first += static_cast<uint64_t>(a.first_row * a.cols);
  }
  for (int64_t first = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; first < a.seq;
       first += warps) {
    float* const to = a.dpositions + (a.first_row + first) % a.seq * a.cols + column;
    Floats<N> sums;
    if (a.accumulate) sums = load<N>(to);
    MTL_UNROLL(4)
    for (int64_t row = first; row < a.rows; row += a.seq) {
      const int64_t i = row * a.cols + column;
      Floats<N> d = load<N>(a.dout + i);
      if constexpr (kMasked) {
        const Floats<N> factors = mask_factors<N>(mask, mask.first + static_cast<uint64_t>(i));
        for (int k = 0; k < N; ++k) d.at[k] *= factors.at[k];
      }
      store(a.dx + i, d);
      for (int k = 0; k < N; ++k) sums.at[k] += d.at[k];
    }
    store(to, sums);
  }
}

}  // namespace

void position_forward(Queue& queue, Tensor x, Tensor positions, int64_t seq, Tensor out,
                      Dropout dropout, int64_t first_row) {
  add_rows(queue, {.x = x,
                   .addend = positions,
                   .residual = {},
                   .out = out,
                   .row0 = first_row,
                   .period = seq,
                   .dropout = dropout,
                   .first_element = first_row * x.cols()});
}

void position_backward(Queue& queue, Tensor dout, int64_t seq, Tensor dx, Tensor dpositions,
                       bool accumulate, Dropout dropout, int64_t first_row) {
  with_type(dout.dtype, [&](auto type) {
    using T = decltype(type);
    const Backward<T> args = {dout.as<const T>(), dx.as<T>(),  dpositions.as<float>(),
                              dout.rows(),        dout.cols(), seq,
                              first_row,          accumulate,  EnqueuedMask(dropout)};
    const bool packs = aligned({args.dout, args.dx, args.dpositions}) &&
                       args.cols % kPackOf<T> == 0 && dropout.sequence_elements % 4 == 0;
    with_pack<kPackOf<T>>(packs, [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      dim3 grid = blocks_for(queue, seq, kWarps);
      grid.y = static_cast<unsigned>(divide_up(args.cols, int64_t{kWarp} * N));
      launch(dropout ? position_backward_kernel<T, N, true> : position_backward_kernel<T, N, false>,
             grid, dim3(kBlock), 0, queue.stream(), args);
    });
  });
}

}  // namespace mtl::cuda
