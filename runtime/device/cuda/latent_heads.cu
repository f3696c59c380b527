// The heads of latent attention, from its projections and back: one pass, 2 s bytes per element of
// the qkv, with s the size of the type (what all heads share of `latents` comes from the caches).
#include "runtime/device/cuda/kernels.h"

namespace mtl::cuda {

namespace {

template <typename T>
struct LatentArgs {
  T *queries, *pairs, *latents, *qkv;  // of `latents` the first of its last rope_dim columns
  const float* table;
  int64_t rows, latent_stride, seq, first_position;
  int heads, dim, rope_dim, value_dim;
  float direction;
  const int32_t* positions;  // null: they count
};

template <typename T>
__device__ inline const float* cosines_of(const LatentArgs<T>& a, int64_t row) {
  const int64_t position =
      a.positions == nullptr ? a.first_position + row % a.seq : int64_t{a.positions[row]};
  return a.table + position * a.rope_dim;
}

// Elements i .. i + N - 1 of what is rotated, of which `x` are here: the pairs among them, or of a
// single element that with its neighbour.
template <int N>
__device__ inline Floats<N> turned(const Floats<N>& x, float neighbour, const float* cosines, int i,
                                   int rope_dim, float direction) {
  Floats<N> y;
  const float* const sines = cosines + rope_dim / 2;
  if constexpr (N == 1) {
    const float sine = sines[i / 2] * (i % 2 == 0 ? -direction : direction);
    y.at[0] = x.at[0] * cosines[i / 2] + neighbour * sine;
  } else {
    const Floats<N / 2> c = load<N / 2>(cosines + i / 2), s = load<N / 2>(sines + i / 2);
    for (int k = 0; k < N / 2; ++k) {
      const float sine = s.at[k] * direction, p = x.at[2 * k], q = x.at[2 * k + 1];
      y.at[2 * k] = p * c.at[k] + q * -sine;
      y.at[2 * k + 1] = q * c.at[k] + p * sine;
    }
  }
  return y;
}

// A block per row, a warp per head, a pack of N elements per lane: of the head's query, key and
// value.
template <typename T, int N, bool kBackward>
__global__ void __launch_bounds__(kBlock) latent_heads_kernel(LatentArgs<T> a) {
  const int kept = a.dim - a.rope_dim, pair = kept + a.value_dim;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const float* const cosines = cosines_of(a, row);
    T* const qkv = a.qkv + row * a.heads * (2 * a.dim + a.value_dim);
    for (int head = static_cast<int>(threadIdx.x / kWarp); head < a.heads; head += kWarps) {
      const int64_t of_all = row * a.heads + head;
      MTL_UNROLL(2)
      for (int i = static_cast<int>(threadIdx.x % kWarp) * N; i < 2 * a.dim + a.value_dim;
           i += static_cast<int>(kWarp) * N) {
        T *apart, *together;  // where it lies among the three, and in the qkv
        int turn = -1;        // of what is rotated the first; none
        if (i < a.dim) {
          apart = a.queries + of_all * a.dim + i;
          together = qkv + head * a.dim + i;
          turn = i - kept;
        } else if (i < 2 * a.dim) {
          const int at = i - a.dim;
          together = qkv + (a.heads + head) * a.dim + at;
          turn = at - kept;
          if (turn >= 0 && kBackward) continue;  // of all heads at once
          apart =
              turn >= 0 ? a.latents + row * a.latent_stride + turn : a.pairs + of_all * pair + at;
        } else {
          const int at = i - 2 * a.dim;
          together = qkv + 2 * a.heads * a.dim + head * a.value_dim + at;
          apart = a.pairs + of_all * pair + kept + at;
        }
        const T* const from = kBackward ? together : apart;
        Floats<N> x = load<N>(from);
        if (turn >= 0) {
          float neighbour = 0;
          if constexpr (N == 1) neighbour = to_float(from[turn % 2 == 0 ? 1 : -1]);
          x = turned(x, neighbour, cosines, turn, a.rope_dim, a.direction);
        }
        store(kBackward ? apart : together, x);
      }
    }
  }
}

// The gradient of what the keys of all heads share: a thread per pack of it.
template <typename T, int N>
__global__ void __launch_bounds__(kBlock) shared_keys_backward_kernel(LatentArgs<T> a) {
  constexpr int kPer = N > 1 ? N : 2;  // whole pairs
  const int packs = a.rope_dim / kPer;
  const int64_t threads = int64_t{gridDim.x} * kBlock;
  for (int64_t item = int64_t{blockIdx.x} * kBlock + threadIdx.x; item < a.rows * packs;
       item += threads) {
    const int64_t row = item / packs;
    const int i = static_cast<int>(item - row * packs) * kPer;
    const T* key = a.qkv + row * a.heads * (2 * a.dim + a.value_dim) + int64_t{a.heads} * a.dim +
                   a.dim - a.rope_dim + i;
    Floats<kPer> sum;
    MTL_UNROLL(8)
    for (int head = 0; head < a.heads; ++head) {
      for (int first = 0; first < kPer; first += N) {
        const Floats<N> x = load<N>(key + first);
        for (int k = 0; k < N; ++k) sum.at[first + k] += x.at[k];
      }
      key += a.dim;
    }
    const float* const cosines = cosines_of(a, row);
    T* const to = a.latents + row * a.latent_stride + i;
    if constexpr (N > 1) {
      store(to, turned(sum, 0, cosines, i, a.rope_dim, a.direction));
    } else {
      for (int k = 0; k < 2; ++k) {
        const Floats<1> one = {{sum.at[k]}};
        store(to + k, turned(one, sum.at[1 - k], cosines, i + k, a.rope_dim, a.direction));
      }
    }
  }
}

}  // namespace

void latent_heads(Queue& queue, const LatentHeads& args) {
  with_type(args.qkv.dtype, [&](auto type) {
    using T = decltype(type);
    const int64_t stride = args.latents.cols();
    const LatentArgs<T> a = {args.queries.as<T>(),
                             args.pairs.as<T>(),
                             args.latents.as<T>() + stride - args.rope_dim,
                             args.qkv.as<T>(),
                             args.table.as<const float>(),
                             args.qkv.rows(),
                             stride,
                             args.seq,
                             args.first_position,
                             static_cast<int>(args.heads),
                             static_cast<int>(args.head_dim),
                             static_cast<int>(args.rope_dim),
                             static_cast<int>(args.value_dim),
                             args.backward ? -1.0f : 1.0f,
                             args.positions ? args.positions.as<const int32_t>() : nullptr};
    // Halves of a pack of angles, too, where the sines begin.
    const auto in_packs = [](int64_t columns) { return columns % kPackOf<T> == 0; };
    const bool packs = aligned({a.queries, a.pairs, a.latents, a.qkv, a.table}) &&
                       in_packs(a.dim) && in_packs(a.rope_dim) && in_packs(a.value_dim) &&
                       in_packs(stride);
    with_pack<kPackOf<T>>(packs, [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      const auto start = [&](auto* kernel, dim3 blocks) {
        launch(kernel, blocks, dim3(kBlock), 0, queue.stream(), a);
      };
      const dim3 row_each = blocks_for(queue, a.rows, 1);
      if (!args.backward) return start(latent_heads_kernel<T, N, false>, row_each);
      start(latent_heads_kernel<T, N, true>, row_each);
      start(shared_keys_backward_kernel<T, N>,
            blocks_for(queue, a.rows * a.rope_dim, int64_t{kBlock} * std::max(N, 2)));
    });
  });
}

}  // namespace mtl::cuda
