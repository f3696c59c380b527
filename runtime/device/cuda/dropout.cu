// Rows with dropout: one pass. Bytes per element, with s the size of the type: bias_dropout_add 3
// s, dropout_backward and position_forward 2 s; biases and positions are small or stay in the L2
// cache. Philox costs about 20 integer instructions per element.
#include "runtime/device/cuda/add_rows.h"

namespace mtl::cuda {

namespace {

template <typename T>
struct Rows {
  const T *x, *addend, *residual;
  T* out;
  int64_t rows, cols, row0, period;
  EnqueuedMask mask;
  uint64_t first_element;  // of the pass
  float scale;
};

// A warp per row.
template <typename T, int N, bool kMasked>
__global__ void __launch_bounds__(kBlock, 3) add_rows_kernel(Rows<T> a) {
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  Mask mask;
  if constexpr (kMasked) {
    mask = mask_of(a.mask);
    mask.first += a.first_element;
  }
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; row < a.rows;
       row += warps) {
    const int64_t first = row * a.cols;
    const T* addend = a.addend;
    if (addend != nullptr && a.period > 1) addend += (a.row0 + row) % a.period * a.cols;
    MTL_UNROLL(2)
    for (int64_t c = threadIdx.x % kWarp * N; c < a.cols; c += kWarp * N) {
      const int64_t i = first + c;
      Floats<N> values = load<N>(a.x + i), residual;
      if (a.residual != nullptr) residual = load<N>(a.residual + i);
      if (addend != nullptr) {
        const Floats<N> more = load<N>(addend + c);
        for (int k = 0; k < N; ++k) values.at[k] += more.at[k];
      }
      if constexpr (kMasked) {
        const Floats<N> factors = mask_factors<N>(mask, mask.first + static_cast<uint64_t>(i));
        for (int k = 0; k < N; ++k) values.at[k] *= factors.at[k];
      }
      if (a.residual != nullptr) {
        for (int k = 0; k < N; ++k) {
          values.at[k] = fmaf(values.at[k], a.scale, residual.at[k]);
        }
      } else {
        for (int k = 0; k < N; ++k) values.at[k] *= a.scale;
      }
      store(a.out + i, values);
    }
  }
}

}  // namespace

void add_rows(Queue& queue, const AddRows& args) {
  with_type(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const Rows<T> rows = {args.x.as<const T>(),
                          args.addend.as<const T>(),
                          args.residual.as<const T>(),
                          args.out.as<T>(),
                          args.x.rows(),
                          args.x.cols(),
                          args.row0,
                          args.period,
                          EnqueuedMask(args.dropout),
                          static_cast<uint64_t>(args.first_element),
                          args.scale};
    // Then the first element of a row is a multiple of four, too, as mask_factors wants it.
    const bool packs = aligned({rows.x, rows.addend, rows.residual, rows.out}) &&
                       rows.cols % kPackOf<T> == 0 && args.dropout.sequence_elements % 4 == 0;
    with_pack<kPackOf<T>>(packs, [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      launch(args.dropout ? add_rows_kernel<T, N, true> : add_rows_kernel<T, N, false>,
             blocks_for(queue, rows.rows, kWarps), dim3(kBlock), 0, queue.stream(), rows);
    });
  });
}

void bias_dropout_add(Queue& queue, const ResidualAdd& args) {
  add_rows(queue, {.x = args.x,
                   .addend = args.bias,
                   .residual = args.residual,
                   .out = args.out,
                   .dropout = args.dropout,
                   .first_element = args.first_row * args.x.cols(),
                   .scale = args.scale});
}

void dropout_backward(Queue& queue, const DropoutBackward& args) {
  if (!args.dropout && args.scale == 1) {
    if (args.dx.data != args.dout.data) copy(queue, args.dout, args.dx);
    return;
  }
  add_rows(queue, {.x = args.dout,
                   .addend = {},
                   .residual = {},
                   .out = args.dx,
                   .dropout = args.dropout,
                   .first_element = args.first_row * args.dout.cols(),
                   .scale = args.scale});
}

}  // namespace mtl::cuda
