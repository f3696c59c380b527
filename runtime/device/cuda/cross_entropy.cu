// Vocabulary-parallel cross-entropy: a row of logits is the work of a block (of a warp, where it is
// short). Bytes per logit, with s the size of the type: max s, sum s, backward 2 s; one pass each.
// The results of each step are joined over TP before the next, so they cannot be one kernel; where
// one rank has the whole vocabulary, one pass makes the losses (s), and with the gradient behind it
// the row is still in the level-2 cache when it is read again (2 s of memory): the rows that all
// multiprocessors are at, 256 KB each with Llama 3's vocabulary, take less than that has.
#include <algorithm>
#include <cfloat>
#include <type_traits>

#include "runtime/device/cuda/exponential.h"
#include "runtime/device/cuda/kernels.h"

namespace mtl::cuda {

namespace {

constexpr int64_t kShort = 2048;  // columns that a warp is enough for
// losses_kernel has few rows at a time in work, so that these stay in the cache, by many threads
// each: on a multiprocessor two blocks of kWide, the one waiting while the other moves, or one of
// kWidest where two rows are too much (34 MB are 132 multiprocessors' rows of Llama 3's 128,256).
constexpr int kWide = 512, kWidest = 1024;
constexpr int64_t kLongest = int64_t{128} << 10;  // bytes of a row
template <int kTeam>
constexpr int kThreadsOf = kTeam > kBlock ? kTeam : kBlock;

template <typename T>
struct Args {
  T* logits;
  const int32_t* targets;
  int64_t rows, cols, first, valid;
  float *row_max, *sum_exp, *target_logit;
  float scale, cap, inverse_cap;
};

// What a logit counts as, and the derivative of that where it is `value`.
template <bool kCaps, typename T>
__device__ inline float counted(const Args<T>& a, float logit) {
  return kCaps ? a.cap * tanh_of(logit * a.inverse_cap) : logit;
}
template <bool kCaps, typename T>
__device__ inline float slope_of(const Args<T>& a, float value) {
  const float t = kCaps ? value * a.inverse_cap : 0.0f;
  return 1 - t * t;
}

// f(value, k) for a team's share of a row's valid logits; k < N is the place in a pack.
template <typename T, int N, int kTeam, bool kCaps, typename F>
__device__ inline void each_valid(const Args<T>& a, const T* row, F f) {
  const int64_t valid = a.valid, packed = valid / N * N;
  const auto rank = static_cast<int64_t>(threadIdx.x) % kTeam;
  MTL_UNROLL(4)
  for (int64_t i = rank * N; i < packed; i += kTeam * N) {
    const Floats<N> values = load<N>(row + i);
    for (int k = 0; k < N; ++k) f(counted<kCaps>(a, values.at[k]), k);
  }
  if (packed + rank < valid) f(counted<kCaps>(a, to_float(row[packed + rank])), 0);
}

template <typename T, int N, int kTeam, bool kCaps>
__global__ void __launch_bounds__(kBlock) max_kernel(Args<T> a) {
  __shared__ float shared[kWarps];
  constexpr int kTeams = kBlock / kTeam;
  for (int64_t r = int64_t{blockIdx.x} * kTeams + threadIdx.x / kTeam; r < a.rows;
       r += int64_t{gridDim.x} * kTeams) {
    float largest = -INFINITY;
    each_valid<T, N, kTeam, kCaps>(a, a.logits + r * a.cols,
                                   [&](float value, int) { largest = fmaxf(largest, value); });
    largest = team_max<kTeam>(largest, shared);
    if (threadIdx.x % kTeam == 0) a.row_max[r] = largest;
  }
}

// A sum per place in a pack: additions that do not wait for each other, of at most a hundred
// numbers each in a vocabulary of 200,000, so that f32 is enough.
template <typename T, int N, int kTeam, bool kCaps>
__global__ void __launch_bounds__(kBlock) sum_kernel(Args<T> a) {
  __shared__ float shared[kWarps];
  constexpr int kTeams = kBlock / kTeam;
  for (int64_t r = int64_t{blockIdx.x} * kTeams + threadIdx.x / kTeam; r < a.rows;
       r += int64_t{gridDim.x} * kTeams) {
    const T* const row = a.logits + r * a.cols;
    const float row_max = a.row_max[r];
    float sums[N] = {}, sum[1] = {};
    each_valid<T, N, kTeam, kCaps>(a, row,
                                   [&](float value, int k) { sums[k] += exp_of(value - row_max); });
    for (int k = 0; k < N; ++k) sum[0] += sums[k];
    team_sum<kTeam>(sum, shared);
    if (threadIdx.x % kTeam == 0) {
      a.sum_exp[r] = sum[0];
      const int64_t target = a.targets[r] - a.first;
      const bool here = a.targets[r] >= 0 && target >= 0 && target < a.valid;
      a.target_logit[r] = here ? counted<kCaps>(a, to_float(row[target])) : 0.0f;
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

// The gradient in place, by a team. `target` may be any number where the row has none here. What
// few packs meet, the target and the end of what is valid, is not asked of every element: there it
// would be most of the work.
template <typename T, int N, int kTeam, bool kCaps>
__device__ inline void write_gradient(const Args<T>& a, T* row, int64_t valid, int64_t target,
                                      float row_max, float sum_exp) {
  const float factor = a.scale / sum_exp;
  // Of the cross-entropy by what a logit counts as, and from there by the logit.
  const auto gradient = [&](float logit, float less) {
    const float value = counted<kCaps>(a, logit);
    const float of_value = exp_of(value - row_max) * factor - less;
    return kCaps ? of_value * slope_of<kCaps>(a, value) : of_value;
  };
  const auto rank = static_cast<int64_t>(threadIdx.x) % kTeam;
  // Nobody else writes to the pack that this thread is to read.
  const bool has_target = target >= 0 && target < valid && target / N % kTeam == rank;
  const float at_target = has_target ? gradient(to_float(row[target]), a.scale) : 0.0f;
  int64_t i = rank * N;
  MTL_UNROLL(2)
  for (; i + N <= valid; i += kTeam * N) {
    Floats<N> values = load<N>(row + i);
    for (int k = 0; k < N; ++k) values.at[k] = gradient(values.at[k], 0);
    store(row + i, values);
  }
  // What is 0 whatever the logits are is not read.
  for (; i < a.cols; i += kTeam * N) {
    Floats<N> values;
    for (int k = 0; k < N; ++k) {
      values.at[k] = i + k < valid ? gradient(to_float(row[i + k]), 0) : 0.0f;
    }
    store(row + i, values);
  }
  if (has_target) row[target] = from_float<T>(at_target);
}

// A thread's sum of exp(logit - its largest so far), brought up to a larger one by a factor (M.
// Milakov and N. Gimelshein, arXiv 1805.02867). What is -inf or a NaN gets where it gets with the
// largest known beforehand, since that begins at a finite number.
template <typename T, int N, int kTeam, bool kCaps, bool kGradient>
__global__ void __launch_bounds__(kThreadsOf<kTeam>) losses_kernel(Args<T> a, float* losses) {
  constexpr int kThreads = kThreadsOf<kTeam>, kTeams = kThreads / kTeam;
  __shared__ float shared[kThreads / static_cast<int>(kWarp)];
  // Of which one largest value is taken, and whose reads overlap: 64 KB on a multiprocessor, of
  // which the memory wants 30 to 40 while the exponentials of as many take their time.
  constexpr int kPacks = 32 / N;
  const auto rank = static_cast<int64_t>(threadIdx.x) % kTeam;
  for (int64_t r = int64_t{blockIdx.x} * kTeams + threadIdx.x / kTeam; r < a.rows;
       r += int64_t{gridDim.x} * kTeams) {
    T* const row = a.logits + r * a.cols;
    const int32_t id = a.targets[r];
    const int64_t target = id - a.first;
    float target_logit = 0;  // before it becomes its gradient
    if (rank == 0 && id >= 0 && target >= 0 && target < a.valid) {
      target_logit = counted<kCaps>(a, to_float(row[target]));
    }
    float largest = -FLT_MAX, sums[N] = {};
    const auto pack_at = [&](int64_t at) {
      Floats<N> values = load<N>(row + at);
      for (int k = 0; k < N; ++k) values.at[k] = counted<kCaps>(a, values.at[k]);
      return values;
    };
    const auto take = [&](const Floats<N>(&packs)[kPacks]) {
      float here = largest;
      for (int p = 0; p < kPacks; ++p) {
        for (int k = 0; k < N; ++k) here = fmaxf(here, packs[p].at[k]);
      }
      if (here > largest) {
        const float factor = exp_of(largest - here);
        for (int k = 0; k < N; ++k) sums[k] *= factor;
        largest = here;
      }
      for (int p = 0; p < kPacks; ++p) {
        for (int k = 0; k < N; ++k) sums[k] += exp_of(packs[p].at[k] - largest);
      }
    };
    const int64_t packed = a.valid / N * N;
    constexpr int64_t kStride = int64_t{kTeam} * N;
    int64_t i = rank * N;
    for (; i + (kPacks - 1) * kStride < packed; i += kPacks * kStride) {
      Floats<N> packs[kPacks];
      for (int p = 0; p < kPacks; ++p) packs[p] = pack_at(i + p * kStride);
      take(packs);
    }
    if (i < packed) {
      Floats<N> packs[kPacks];
      for (int p = 0; p < kPacks; ++p) {
        for (int k = 0; k < N; ++k) packs[p].at[k] = -INFINITY;
        if (i + p * kStride < packed) packs[p] = pack_at(i + p * kStride);
      }
      take(packs);
    }
    if (packed + rank < a.valid) {
      const float value = counted<kCaps>(a, to_float(row[packed + rank]));
      const float here = fmaxf(largest, value);
      const float factor = exp_of(largest - here);
      for (int k = 0; k < N; ++k) sums[k] *= factor;
      sums[0] += exp_of(value - here);
      largest = here;
    }
    const float row_max = team_max<kTeam>(largest, shared);
    float sum[1] = {};
    for (int k = 0; k < N; ++k) sum[0] += sums[k];
    sum[0] *= exp_of(largest - row_max);
    team_sum<kTeam>(sum, shared);
    if (rank == 0) {
      a.row_max[r] = row_max;
      a.sum_exp[r] = sum[0];
      a.target_logit[r] = target_logit;
      losses[r] = id < 0 ? 0.0f : loss_of(row_max, sum[0], target_logit);
    }
    if constexpr (kGradient) {
      // All of the team have read the row before one writes: a block has met in its sum.
      if constexpr (kTeam == static_cast<int>(kWarp)) __syncwarp();
      write_gradient<T, N, kTeam, kCaps>(a, row, id < 0 ? 0 : a.valid, target, row_max, sum[0]);
    }
  }
}

template <typename T, int N, int kTeam, bool kCaps>
__global__ void __launch_bounds__(kBlock) backward_kernel(Args<T> a) {
  constexpr int kTeams = kBlock / kTeam;
  for (int64_t r = int64_t{blockIdx.x} * kTeams + threadIdx.x / kTeam; r < a.rows;
       r += int64_t{gridDim.x} * kTeams) {
    const int32_t id = a.targets[r];
    write_gradient<T, N, kTeam, kCaps>(a, a.logits + r * a.cols, id < 0 ? 0 : a.valid, id - a.first,
                                       a.row_max[r], a.sum_exp[r]);
  }
}

// body(Args<T>, Constant<N>, Constant<kTeam>, whether logits are capped)
template <int kLongTeam = kBlock, int kLongestTeam = kLongTeam, typename Body>
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
                       scale,
                       args.cap,
                       args.cap > 0 ? 1 / args.cap : 0};
    const auto with_caps = [&](auto pack, auto team) {
      if (args.cap > 0) {
        body(a, pack, team, std::true_type{});
      } else {
        body(a, pack, team, std::false_type{});
      }
    };
    with_pack<kPackOf<T>>(aligned({a.logits}) && a.cols % kPackOf<T> == 0, [&](auto pack) {
      if (a.cols <= kShort) {
        with_caps(pack, Constant<static_cast<int>(kWarp)>{});
      } else if (kLongTeam == kLongestTeam || a.cols * int64_t{sizeof(T)} <= kLongest) {
        with_caps(pack, Constant<kLongTeam>{});
      } else {
        with_caps(pack, Constant<kLongestTeam>{});
      }
    });
  });
}

// The same sums with the gradient as without.
template <bool kGradient>
void start_losses(Queue& queue, const CrossEntropy& args, float scale) {
  with_rows<kWide, kWidest>(
      args, scale, [&]<typename T>(const Args<T>& a, auto pack, auto team, auto caps) {
        constexpr int N = decltype(pack)::value, kTeam = decltype(team)::value;
        constexpr bool kCaps = decltype(caps)::value;
        constexpr int kThreads = kThreadsOf<kTeam>;
        dim3 grid = blocks_for(queue, a.rows, kThreads / kTeam);
        if (kTeam >= kWide) {
          const int64_t at_once = int64_t{queue.multiprocessors()} * (kWidest / kTeam);
          grid.x = static_cast<unsigned>(std::min(a.rows, at_once));
        }
        launch(losses_kernel<T, N, kTeam, kCaps, kGradient>, grid, dim3(kThreads), 0,
               queue.stream(), a, args.loss.as<float>());
      });
}

}  // namespace

void cross_entropy_max(Queue& queue, const CrossEntropy& args) {
  with_rows(args, 0, [&]<typename T>(const Args<T>& a, auto pack, auto team, auto caps) {
    constexpr int N = decltype(pack)::value, kTeam = decltype(team)::value;
    constexpr bool kCaps = decltype(caps)::value;
    launch(max_kernel<T, N, kTeam, kCaps>, blocks_for(queue, a.rows, kBlock / kTeam), dim3(kBlock),
           0, queue.stream(), a);
  });
}

void cross_entropy_sum(Queue& queue, const CrossEntropy& args) {
  with_rows(args, 0, [&]<typename T>(const Args<T>& a, auto pack, auto team, auto caps) {
    constexpr int N = decltype(pack)::value, kTeam = decltype(team)::value;
    constexpr bool kCaps = decltype(caps)::value;
    launch(sum_kernel<T, N, kTeam, kCaps>, blocks_for(queue, a.rows, kBlock / kTeam), dim3(kBlock),
           0, queue.stream(), a);
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
  start_losses<false>(queue, args, 0);
}

void cross_entropy_both(Queue& queue, const CrossEntropy& args, float scale) {
  start_losses<true>(queue, args, scale);
}

void cross_entropy_backward(Queue& queue, const CrossEntropy& args, float scale) {
  with_rows(args, scale, [&]<typename T>(const Args<T>& a, auto pack, auto team, auto caps) {
    constexpr int N = decltype(pack)::value, kTeam = decltype(team)::value;
    constexpr bool kCaps = decltype(caps)::value;
    launch(backward_kernel<T, N, kTeam, kCaps>, blocks_for(queue, a.rows, kBlock / kTeam),
           dim3(kBlock), 0, queue.stream(), a);
  });
}

}  // namespace mtl::cuda
