// What belongs to a mixture of experts and not to the way of its rows: the block that all tokens go
// through, and how many tokens the experts get. Bytes per element of a row, with s the size of the
// type: add_shared 3 s, add_shared_backward 4 s.
#include "runtime/device/cuda/expert_scores.h"

namespace mtl::cuda {

namespace {

// Rows of `width` elements, a warp each.
template <typename T>
struct Shared {
  const T* from;
  const float* gate;
  T* to;
  int64_t rows, width;
};

template <typename T, int N>
__global__ void __launch_bounds__(kBlock) add_shared_kernel(Shared<T> a) {
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; row < a.rows;
       row += warps) {
    const float open = a.gate != nullptr ? expert_sigmoid(a.gate[row]) : 1.0f;
    const int64_t first = row * a.width;
    for (int64_t i = threadIdx.x % kWarp * N; i < a.width; i += kWarp * N) {
      const Floats<N> x = load<N>(a.from + first + i);
      Floats<N> y = load<N>(a.to + first + i);
      for (int k = 0; k < N; ++k) y.at[k] += open * x.at[k];
      store(a.to + first + i, y);
    }
  }
}

template <typename T>
struct SharedBackward {
  T *x, *dy;
  const float* gate;
  T* dgate;
  int64_t rows, width;
};

template <typename T, int N>
__global__ void __launch_bounds__(kBlock) add_shared_backward_kernel(SharedBackward<T> a) {
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; row < a.rows;
       row += warps) {
    const float open = expert_sigmoid(a.gate[row]);
    const int64_t first = row * a.width;
    float sum = 0;
    for (int64_t i = threadIdx.x % kWarp * N; i < a.width; i += kWarp * N) {
      Floats<N> x = load<N>(a.x + first + i), d = load<N>(a.dy + first + i);
      for (int k = 0; k < N; ++k) {
        sum += x.at[k] * d.at[k];
        x.at[k] *= open;
        d.at[k] *= open;
      }
      store(a.x + first + i, x);
      store(a.dy + first + i, d);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % kWarp == 0) a.dgate[row] = from_float<T>(sum * open * (1 - open));
  }
}

__global__ void __launch_bounds__(kBlock)
    count_experts_kernel(const int32_t* counts, double* sums, int64_t experts) {
  for (int64_t e = threadIdx.x; e < experts; e += kBlock) sums[e] += counts[e];
}

struct Balance {
  const double* counts;
  float* bias;
  const float* factor;
  int64_t experts;
  float rate;
};

// A block per layer; every thread adds up the layer's counts: whole numbers, and few.
__global__ void __launch_bounds__(kBlock) balance_experts_kernel(Balance a) {
  const float factor = *a.factor;
  if (factor - factor != 0) return;  // infinite or none
  const double* counts = a.counts + blockIdx.x * a.experts;
  float* bias = a.bias + blockIdx.x * a.experts;
  double sum = 0;
  for (int64_t e = 0; e < a.experts; ++e) sum += counts[e];
  for (int64_t e = threadIdx.x; e < a.experts; e += kBlock) {
    const double own = counts[e] * static_cast<double>(a.experts);
    if (own < sum) bias[e] += a.rate;
    if (own > sum) bias[e] -= a.rate;
  }
}

}  // namespace

void add_shared(Queue& queue, const AddShared& args) {
  with_type(args.from.dtype, [&](auto type) {
    using T = decltype(type);
    const Shared<T> shared = {args.from.as<const T>(), args.gate.as<const float>(), args.to.as<T>(),
                              args.from.rows(), args.from.cols()};
    const bool packs = aligned({shared.from, shared.to}) && shared.width % kPackOf<T> == 0;
    with_pack<kPackOf<T>>(packs, [&](auto pack) {
      launch(add_shared_kernel<T, decltype(pack)::value>, blocks_for(queue, shared.rows, kWarps),
             dim3(kBlock), 0, queue.stream(), shared);
    });
  });
}

void add_shared_backward(Queue& queue, const AddSharedBackward& args) {
  with_type(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const SharedBackward<T> shared = {
        args.x.as<T>(),     args.dy.as<T>(), args.gate.as<const float>(),
        args.dgate.as<T>(), args.x.rows(),   args.x.cols()};
    const bool packs = aligned({shared.x, shared.dy}) && shared.width % kPackOf<T> == 0;
    with_pack<kPackOf<T>>(packs, [&](auto pack) {
      launch(add_shared_backward_kernel<T, decltype(pack)::value>,
             blocks_for(queue, shared.rows, kWarps), dim3(kBlock), 0, queue.stream(), shared);
    });
  });
}

void count_experts(Queue& queue, const CountExperts& args) {
  launch(count_experts_kernel, dim3(1), dim3(kBlock), 0, queue.stream(),
         args.counts.as<const int32_t>(), args.sums.as<double>(), args.counts.numel());
}

void balance_experts(Queue& queue, const BalanceExperts& args) {
  const Balance balance = {args.counts.as<const double>(), args.bias.as<float>(),
                           args.factor.as<const float>(), args.bias.cols(),
                           static_cast<float>(args.rate)};
  launch(balance_experts_kernel, dim3(static_cast<unsigned>(args.bias.rows())), dim3(kBlock), 0,
         queue.stream(), balance);
}

}  // namespace mtl::cuda
