// Rotary positions, in place: one pass over what is turned of the q and k heads, 2 s bytes per
// element of it, with s the size of the type. The angles of a row (4 bytes per turned element of a
// head) are read for every head of it, from the caches.
#include "runtime/device/cuda/kernels.h"

namespace mtl::cuda {

namespace {

template <typename T>
struct Args {
  T* qkv;
  const float* table;
  int64_t rows, stride, seq, first_row;
  int heads, head_dim, half;  // q and k heads; half of what is turned of one
  float direction;
  const int32_t* positions;  // null: they count
};

// A warp per row; a lane turns N pairs at a time.
template <typename T, int N>
__global__ void __launch_bounds__(kBlock) rope_kernel(Args<T> a) {
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  const int packs = a.half / N;  // of half a head, or of what is turned of it
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; row < a.rows;
       row += warps) {
    const int64_t position =
        a.positions == nullptr ? (a.first_row + row) % a.seq : int64_t{a.positions[row]};
    const float* const cosines = a.table + position * (2 * a.half);
    T* const x = a.qkv + row * a.stride;
    MTL_UNROLL(2)
    for (int item = static_cast<int>(threadIdx.x % kWarp); item < a.heads * packs;
         item += static_cast<int>(kWarp)) {
      const int head = item / packs, i = (item - head * packs) * N;
      T* const first = x + int64_t{head} * a.head_dim + i;
      const Floats<N> c = load<N>(cosines + i), s = load<N>(cosines + a.half + i);
      Floats<N> low = load<N>(first), high = load<N>(first + a.half);
      for (int k = 0; k < N; ++k) {
        const float sine = s.at[k] * a.direction, p = low.at[k], q = high.at[k];
        low.at[k] = p * c.at[k] - q * sine;
        high.at[k] = q * c.at[k] + p * sine;
      }
      store(first, low);
      store(first + a.half, high);
    }
  }
}

}  // namespace

void rope(Queue& queue, const Rope& args) {
  with_type(args.qkv.dtype, [&](auto type) {
    using T = decltype(type);
    const Args<T> a = {args.qkv.as<T>(),
                       args.table.as<const float>(),
                       args.qkv.rows(),
                       args.qkv.cols(),
                       args.seq,
                       args.first_row,
                       static_cast<int>(args.heads + args.kv_heads),
                       static_cast<int>(args.head_dim),
                       static_cast<int>(args.table.cols() / 2),
                       args.backward ? -1.0f : 1.0f,
                       args.positions ? args.positions.as<const int32_t>() : nullptr};
    // Where heads and halves are whole packs, every half of every row is aligned if the first is.
    const bool packs =
        aligned({a.qkv, a.table}) && a.head_dim % kPackOf<T> == 0 && a.half % kPackOf<T> == 0;
    with_pack<kPackOf<T>>(packs, [&](auto pack) {
      launch(rope_kernel<T, decltype(pack)::value>, blocks_for(queue, a.rows, kWarps), dim3(kBlock),
             0, queue.stream(), a);
    });
  });
}

}  // namespace mtl::cuda
