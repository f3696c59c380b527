// Vocabulary-parallel cross-entropy: a row of logits is the work of a block (of a warp, where it is
// short). Bytes per logit, with s the size of the type: max s, sum s, backward 2 s; one pass each.
// The results of each step are joined over TP before the next, so they cannot be one kernel; where
// one rank has the whole vocabulary, one pass makes the losses (s).
#include <cfloat>

#include "runtime/device/cuda/kernels.h"

namespace mtl::cuda {

namespace {

constexpr int64_t kShort = 2048;  // columns that a warp is enough for

template <typename T>
struct Args {
  T* logits;
  const int32_t* targets;
  int64_t rows, cols, first, valid;
  float *row_max, *sum_exp, *target_logit;
  float scale;
};

// f(value, k) for a team's share of a row's valid logits; k < N is the place in a pack.
template <typename T, int N, int kTeam, typename F>
__device__ inline void each_valid(const T* row, int64_t valid, F f) {
  const int64_t packed = valid / N * N;
  const auto rank = static_cast<int64_t>(threadIdx.x) % kTeam;
  MTL_UNROLL(4)
  for (int64_t i = rank * N; i < packed; i += kTeam * N) {
    const Floats<N> values = load<N>(row + i);
    for (int k = 0; k < N; ++k) f(values.at[k], k);
  }
  if (packed + rank < valid) f(to_float(row[packed + rank]), 0);
}

template <typename T, int N, int kTeam>
__global__ void __launch_bounds__(kBlock) max_kernel(Args<T> a) {
  __shared__ float shared[kWarps];
  constexpr int kTeams = kBlock / kTeam;
  for (int64_t r = int64_t{blockIdx.x} * kTeams + threadIdx.x / kTeam; r < a.rows;
       r += int64_t{gridDim.x} * kTeams) {
    float largest = -INFINITY;
    each_valid<T, N, kTeam>(a.logits + r * a.cols, a.valid,
                            [&](float value, int) { largest = fmaxf(largest, value); });
    largest = team_max<kTeam>(largest, shared);
    if (threadIdx.x % kTeam == 0) a.row_max[r] = largest;
  }
}

// A sum per place in a pack: additions that do not wait for each other, of at most a hundred
// numbers each in a vocabulary of 200,000, so that f32 is enough.
template <typename T, int N, int kTeam>
__global__ void __launch_bounds__(kBlock) sum_kernel(Args<T> a) {
  __shared__ float shared[kWarps];
  constexpr int kTeams = kBlock / kTeam;
  for (int64_t r = int64_t{blockIdx.x} * kTeams + threadIdx.x / kTeam; r < a.rows;
       r += int64_t{gridDim.x} * kTeams) {
    const T* const row = a.logits + r * a.cols;
    const float row_max = a.row_max[r];
    float sums[N] = {}, sum[1] = {};
    each_valid<T, N, kTeam>(row, a.valid,
                            [&](float value, int k) { sums[k] += expf(value - row_max); });
    for (int k = 0; k < N; ++k) sum[0] += sums[k];
    team_sum<kTeam>(sum, shared);
    if (threadIdx.x % kTeam == 0) {
      a.sum_exp[r] = sum[0];
      const int64_t target = a.targets[r] - a.first;
      const bool here = a.targets[r] >= 0 && target >= 0 && target < a.valid;
      a.target_logit[r] = here ? to_float(row[target]) : 0.0f;
    }
  }
}

__device__ inline float loss_of(float row_max, float sum_exp, float target_logit) {
  // In f64: few values, and a difference of large ones.
  const double loss = static_cast<double>(row_max) + log(static_cast<double>(sum_exp)) -
                      static_cast<double>(target_logit);
  return static_cast<float>(loss);
}

__global__ void __launch_bounds__(kBlock)
    loss_kernel(const int32_t* targets, const float* row_max, const float* sum_exp,
                const float* target_logit, float* losses, int64_t n) {
  const int64_t threads = int64_t{gridDim.x} * kBlock;
  for (int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x; i < n; i += threads) {
    losses[i] = targets[i] < 0 ? 0.0f : loss_of(row_max[i], sum_exp[i], target_logit[i]);
  }
}

// A thread's sum of exp(logit - its largest so far), brought up to a larger one by a factor (M.
// Milakov and N. Gimelshein, arXiv 1805.02867). What is -inf or a NaN gets where it gets with the
// largest known beforehand, since that begins at a finite number.
template <typename T, int N, int kTeam>
__global__ void __launch_bounds__(kBlock) losses_kernel(Args<T> a, float* losses) {
  __shared__ float shared[kWarps];
  constexpr int kTeams = kBlock / kTeam;
  constexpr int kPacks = 16 / N;  // of which one largest value is taken, and whose reads overlap
  const auto rank = static_cast<int64_t>(threadIdx.x) % kTeam;
  for (int64_t r = int64_t{blockIdx.x} * kTeams + threadIdx.x / kTeam; r < a.rows;
       r += int64_t{gridDim.x} * kTeams) {
    const T* const row = a.logits + r * a.cols;
    float largest = -FLT_MAX, sums[N] = {};
    const auto take = [&](const Floats<N>* packs, int count) {
      float here = largest;
      for (int p = 0; p < count; ++p) {
        for (int k = 0; k < N; ++k) here = fmaxf(here, packs[p].at[k]);
      }
      if (here > largest) {
        const float factor = expf(largest - here);
        for (int k = 0; k < N; ++k) sums[k] *= factor;
        largest = here;
      }
      for (int p = 0; p < count; ++p) {
        for (int k = 0; k < N; ++k) sums[k] += expf(packs[p].at[k] - largest);
      }
    };
    const int64_t packed = a.valid / N * N;
    constexpr int64_t kStride = int64_t{kTeam} * N;
    int64_t i = rank * N;
    for (; i + (kPacks - 1) * kStride < packed; i += kPacks * kStride) {
      Floats<N> packs[kPacks];
      for (int p = 0; p < kPacks; ++p) packs[p] = load<N>(row + i + p * kStride);
      take(packs, kPacks);
    }
    for (; i < packed; i += kStride) {
      const Floats<N> pack = load<N>(row + i);
      take(&pack, 1);
    }
    if (packed + rank < a.valid) {
      const float value = to_float(row[packed + rank]);
      const float here = fmaxf(largest, value);
      const float factor = expf(largest - here);
      for (int k = 0; k < N; ++k) sums[k] *= factor;
      sums[0] += expf(value - here);
      largest = here;
    }
    const float row_max = team_max<kTeam>(largest, shared);
    float sum[1] = {};
    for (int k = 0; k < N; ++k) sum[0] += sums[k];
    sum[0] *= expf(largest - row_max);
    team_sum<kTeam>(sum, shared);
    if (rank == 0) {
      const int64_t target = a.targets[r] - a.first;
      const bool here = a.targets[r] >= 0 && target >= 0 && target < a.valid;
      const float target_logit = here ? to_float(row[target]) : 0.0f;
      a.row_max[r] = row_max;
      a.sum_exp[r] = sum[0];
      a.target_logit[r] = target_logit;
      losses[r] = a.targets[r] < 0 ? 0.0f : loss_of(row_max, sum[0], target_logit);
    }
  }
}

template <typename T, int N, int kTeam>
__global__ void __launch_bounds__(kBlock) backward_kernel(Args<T> a) {
  constexpr int kTeams = kBlock / kTeam;
  for (int64_t r = int64_t{blockIdx.x} * kTeams + threadIdx.x / kTeam; r < a.rows;
       r += int64_t{gridDim.x} * kTeams) {
    T* const row = a.logits + r * a.cols;
    // What is 0 whatever the logits are is not read.
    const int64_t valid = a.targets[r] < 0 ? 0 : a.valid;
    const int64_t target = a.targets[r] - a.first;
    const float row_max = a.row_max[r], factor = a.scale / a.sum_exp[r];
    MTL_UNROLL(2)
    for (int64_t i = static_cast<int64_t>(threadIdx.x) % kTeam * N; i < a.cols; i += kTeam * N) {
      Floats<N> values;
      if (i < valid) {
        values = load<N>(row + i);
        for (int k = 0; k < N; ++k) {
          const float p = expf(values.at[k] - row_max) * factor;
          values.at[k] = i + k < valid ? (i + k == target ? p - a.scale : p) : 0.0f;
        }
      }
      store(row + i, values);
    }
  }
}

// body(Args<T>, Constant<N>, Constant<kTeam>)
template <typename Body>
void with_rows(const CrossEntropy& args, float scale, Body body) {
  with_type(args.logits.dtype, [&](auto type) {
    using T = decltype(type);
    const Args<T> a = {args.logits.as<T>(),
                       args.targets.as<const int32_t>(),
                       args.logits.rows(),
                       args.logits.cols(),
                       args.first,
                       args.valid,
                       args.row_max.as<float>(),
                       args.sum_exp.as<float>(),
                       args.target_logit.as<float>(),
                       scale};
    with_pack<kPackOf<T>>(aligned({a.logits}) && a.cols % kPackOf<T> == 0, [&](auto pack) {
      if (a.cols <= kShort) {
        body(a, pack, Constant<static_cast<int>(kWarp)>{});
      } else {
        body(a, pack, Constant<kBlock>{});
      }
    });
  });
}

}  // namespace

void cross_entropy_max(Queue& queue, const CrossEntropy& args) {
  with_rows(args, 0, [&]<typename T>(const Args<T>& a, auto pack, auto team) {
    constexpr int N = decltype(pack)::value, kTeam = decltype(team)::value;
    launch(max_kernel<T, N, kTeam>, blocks_for(queue, a.rows, kBlock / kTeam), dim3(kBlock), 0,
           queue.stream(), a);
  });
}

void cross_entropy_sum(Queue& queue, const CrossEntropy& args) {
  with_rows(args, 0, [&]<typename T>(const Args<T>& a, auto pack, auto team) {
    constexpr int N = decltype(pack)::value, kTeam = decltype(team)::value;
    launch(sum_kernel<T, N, kTeam>, blocks_for(queue, a.rows, kBlock / kTeam), dim3(kBlock), 0,
           queue.stream(), a);
  });
}

void cross_entropy_loss(Queue& queue, const CrossEntropy& args) {
  const int64_t n = args.targets.numel();
  launch(loss_kernel, blocks_for(queue, n, kBlock), dim3(kBlock), 0, queue.stream(),
         args.targets.as<const int32_t>(), args.row_max.as<const float>(),
         args.sum_exp.as<const float>(), args.target_logit.as<const float>(), args.loss.as<float>(),
         n);
}

void cross_entropy_losses(Queue& queue, const CrossEntropy& args) {
  with_rows(args, 0, [&]<typename T>(const Args<T>& a, auto pack, auto team) {
    constexpr int N = decltype(pack)::value, kTeam = decltype(team)::value;
    launch(losses_kernel<T, N, kTeam>, blocks_for(queue, a.rows, kBlock / kTeam), dim3(kBlock), 0,
           queue.stream(), a, args.loss.as<float>());
  });
}

void cross_entropy_backward(Queue& queue, const CrossEntropy& args, float scale) {
  with_rows(args, scale, [&]<typename T>(const Args<T>& a, auto pack, auto team) {
    constexpr int N = decltype(pack)::value, kTeam = decltype(team)::value;
    launch(backward_kernel<T, N, kTeam>, blocks_for(queue, a.rows, kBlock / kTeam), dim3(kBlock), 0,
           queue.stream(), a);
  });
}

}  // namespace mtl::cuda
