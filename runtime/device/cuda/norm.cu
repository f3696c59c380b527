// Layer and RMS normalisation. Bytes per element, with s the size of the type: 2 s (rows too long
// for registers are read three times, the second and third mostly from the L2 cache), with the
// residual addition before it 4 s.
//
// Mean first, then the variance about it, both from the same registers: no cancellation for rows
// far from zero.
#include "runtime/device/cuda/amax.h"
#include "runtime/device/cuda/rows_ahead.h"

namespace mtl::cuda {

namespace {

template <typename T>
struct Forward {
  T* x;  // read; written where it is made here
  const T *gamma, *beta;
  T* y;
  float *mean, *rstd;
  int64_t rows;
  int cols;
  float eps;
  uint32_t* amax;
};

// What makes x, where a kernel does that, too.
enum class Add { nothing, plain, masked };
template <typename T>
struct Added {
  const T *x, *bias, *residual;
  EnqueuedMask mask;
  uint64_t first_element;  // of the pass
  float scale;
};

// A pack of out, as it is written at element `at`: dropout.cu's arithmetic.
template <typename T, int N, Add kAdd>
__device__ inline Pack<T, N> add_pack(const Added<T>& a, const Mask& mask, int64_t at,
                                      const Pack<T, N>& x, const Floats<N>& bias,
                                      const Pack<T, N>& residual) {
  Floats<N> values = widened(x);
  if (a.bias != nullptr) {
    for (int k = 0; k < N; ++k) values.at[k] += bias.at[k];
  }
  if constexpr (kAdd == Add::masked) {
    const Floats<N> factors = mask_factors<N>(mask, mask.first + static_cast<uint64_t>(at));
    for (int k = 0; k < N; ++k) values.at[k] *= factors.at[k];
  }
  const Floats<N> addend = widened(residual);
  for (int k = 0; k < N; ++k) values.at[k] = fmaf(values.at[k], a.scale, addend.at[k]);
  return rounded<T>(values);
}

template <int N>
__device__ inline void add_squares(const Floats<N>& x, float mean, float& sum) {
  for (int k = 0; k < N; ++k) sum = fmaf(x.at[k] - mean, x.at[k] - mean, sum);
}
template <int N>
__device__ inline Floats<N> normalized(Floats<N> x, float mean, float rstd, const Floats<N>& gamma,
                                       const Floats<N>& beta) {
  for (int k = 0; k < N; ++k) {
    x.at[k] = fmaf((x.at[k] - mean) * rstd, gamma.at[k], beta.at[k]);
  }
  return x;
}

// Keeps the compiler from holding a pack's elements widened, too, over a sum of the block: it would
// need twice the registers.
template <typename T, int N>
__device__ inline void forget_widened([[maybe_unused]] Pack<T, N>& pack) {
#if defined(__CUDACC__)
  static_assert(sizeof pack == 16);
  auto* const words = reinterpret_cast<uint32_t*>(&pack);
  asm volatile("" : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3]));
#endif
}

// So many threads of a multiprocessor have registers: with the words of a mask, or two packs,
// fewer.
template <typename Shape, Add kAdd>
[[maybe_unused]] constexpr int kForwardThreads =
    Shape::kHeld == 1 && kAdd != Add::masked ? 672 : 512;

// A block has a share of the rows, one behind another; threads hold a round's.
template <typename T, int N, typename Shape, Add kAdd>
using Coming = RowsAhead<T, N, Shape, kAdd == Add::nothing ? 1 : 2>;

template <typename T, int N, typename Shape, Add kAdd>
__global__ void __launch_bounds__(kForwardThreads<Shape, kAdd>)
    forward_rows_kernel(Forward<T> a, Added<T> add) {
  constexpr int kRows = Shape::kRows, kHeld = Shape::kHeld;
  MTL_DYNAMIC_SHARED(memory);
  Mask mask;
  if constexpr (kAdd == Add::masked) {
    mask = mask_of(add.mask);
    mask.first += add.first_element;
  }
  Coming<T, N, Shape, kAdd> coming(memory, a.cols);
  Floats<N> gamma[kHeld], beta[kHeld], bias[kHeld];
  MTL_UNROLL_ALL
  for (int j = 0; j < kHeld; ++j) {
    if (!coming.has(j)) continue;
    gamma[j] = load<N>(a.gamma + coming.column(j));
    if (a.beta != nullptr) beta[j] = load<N>(a.beta + coming.column(j));
    if (kAdd != Add::nothing && add.bias != nullptr) {
      bias[j] = load<N>(add.bias + coming.column(j));
    }
  }
  const int64_t begin = a.rows * int64_t{blockIdx.x} / gridDim.x;
  const int64_t end = a.rows * (int64_t{blockIdx.x} + 1) / gridDim.x;
  const auto fetch = [&](int64_t row) {
    if (row < end) {
      const auto live = static_cast<int>(min(end - row, int64_t{kRows}));
      coming.fetch(0, (kAdd == Add::nothing ? a.x : add.x) + row * a.cols, live);
      if constexpr (kAdd != Add::nothing) coming.fetch(1, add.residual + row * a.cols, live);
    }
    coming.fetched();
  };
  const float inverse = 1.0f / static_cast<float>(a.cols);
  BlockSums<kRows, Shape::kMostWarps> block_sums;
  Amax<T> amax(a.amax);
  fetch(begin);
  for (int64_t row = begin; row < end; row += kRows) {
    coming.next();
    fetch(row + kRows);
    coming.wait();
    const auto live = static_cast<int>(min(end - row, int64_t{kRows}));
    // Threads that keep a row's statistics for all.
    const bool keeps = static_cast<int>(threadIdx.x) < live;
    Pack<T, N> x[kHeld][kRows] = {};
    float sums[kRows] = {};
    MTL_UNROLL_ALL
    for (int j = 0; j < kHeld; ++j) {
      if (!coming.has(j)) continue;
      MTL_UNROLL_ALL
      for (int r = 0; r < kRows; ++r) {
        x[j][r] = coming.at(0, r, j);
        if constexpr (kAdd != Add::nothing) {
          const int64_t at = (row + r) * a.cols + coming.column(j);
          x[j][r] = add_pack<T, N, kAdd>(add, mask, at, x[j][r], bias[j], coming.at(1, r, j));
          if (r < live) store_pack(a.x + at, x[j][r]);
        }
        const Floats<N> values = widened(x[j][r]);
        for (int k = 0; k < N; ++k) sums[r] += values.at[k];
      }
    }
    // Of the row that is a lane's; then, from it, of all.
    float lane_mean = 0, mean[kRows] = {};
    if (a.mean != nullptr) {
      lane_mean = block_sums(sums) * inverse;
      if (keeps) a.mean[row + threadIdx.x] = lane_mean;
      for (int r = 0; r < kRows; ++r) mean[r] = __shfl_sync(kAllLanes, lane_mean, r);
    }
    float squares[kRows] = {};
    MTL_UNROLL_ALL
    for (int j = 0; j < kHeld; ++j) {
      if (!coming.has(j)) continue;
      MTL_UNROLL_ALL
      for (int r = 0; r < kRows; ++r) {
        forget_widened(x[j][r]);
        add_squares(widened(x[j][r]), mean[r], squares[r]);
      }
    }
    const float lane_rstd = 1.0f / sqrtf(block_sums(squares) * inverse + a.eps);
    if (keeps) a.rstd[row + threadIdx.x] = lane_rstd;
    float rstd[kRows];
    for (int r = 0; r < kRows; ++r) rstd[r] = __shfl_sync(kAllLanes, lane_rstd, r);
    MTL_UNROLL_ALL
    for (int j = 0; j < kHeld; ++j) {
      if (!coming.has(j)) continue;
      MTL_UNROLL_ALL
      for (int r = 0; r < kRows; ++r) {
        forget_widened(x[j][r]);
        if (r >= live) continue;
        const Floats<N> y = normalized(widened(x[j][r]), mean[r], rstd[r], gamma[j], beta[j]);
        store(a.y + (row + r) * a.cols + coming.column(j), y);
        amax.take(y);
      }
    }
  }
  amax.template finish<Shape::kThreads>();
}

// Rows of any length, read three times, by teams.
template <typename T, int N, int kTeam>
__global__ void __launch_bounds__(kBlock) forward_kernel(Forward<T> a) {
  __shared__ float shared[kWarps];
  constexpr int kTeams = kBlock / kTeam;
  const bool first = threadIdx.x % kTeam == 0;
  Amax<T> amax(a.amax);
  const float inverse = 1.0f / static_cast<float>(a.cols);
  for (int64_t row = int64_t{blockIdx.x} * kTeams + threadIdx.x / kTeam; row < a.rows;
       row += int64_t{gridDim.x} * kTeams) {
    const T* const x = a.x + row * a.cols;
    const auto each_pack = [&](auto f) {
      MTL_UNROLL(4)
      for (int i = static_cast<int>(threadIdx.x) % kTeam * N; i < a.cols; i += kTeam * N) {
        f(i, load<N>(x + i));
      }
    };
    float mean = 0;
    if (a.mean != nullptr) {
      float sum[1] = {};
      each_pack([&](int, const Floats<N>& values) {
        for (int k = 0; k < N; ++k) sum[0] += values.at[k];
      });
      team_sum<kTeam>(sum, shared);
      mean = sum[0] * inverse;
      if (first) a.mean[row] = mean;
    }
    float squares[1] = {};
    each_pack([&](int, const Floats<N>& values) { add_squares(values, mean, squares[0]); });
    team_sum<kTeam>(squares, shared);
    const float rstd = 1.0f / sqrtf(squares[0] * inverse + a.eps);
    if (first) a.rstd[row] = rstd;
    T* const y = a.y + row * a.cols;
    each_pack([&](int i, const Floats<N>& values) {
      Floats<N> beta;
      if (a.beta != nullptr) beta = load<N>(a.beta + i);
      const Floats<N> result = normalized(values, mean, rstd, load<N>(a.gamma + i), beta);
      store(y + i, result);
      amax.take(result);
    });
  }
  amax.template finish<kBlock>();
}

// With an addition, if there is one: by one kernel where registers hold a row, of packs; whether
// that was so.
bool start_forward(Queue& queue, const ResidualAdd& add, const LayerNorm& args) {
  bool done = true;
  with_type(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const Forward<T> a = {
        args.x.as<T>(),          args.gamma.as<const T>(),        args.beta.as<const T>(),
        args.y.as<T>(),          args.mean.as<float>(),           args.rstd.as<float>(),
        args.x.rows(),           static_cast<int>(args.x.cols()), args.eps,
        args.amax.as<uint32_t>()};
    const Added<T> added = {add.x.as<const T>(),
                            add.bias.as<const T>(),
                            add.residual.as<const T>(),
                            EnqueuedMask(add.dropout),
                            static_cast<uint64_t>(add.first_row * args.x.cols()),
                            add.scale};
    constexpr int N = kPackOf<T>, kLanes = static_cast<int>(kWarp);
    const bool packs = aligned({a.x, a.gamma, a.beta, a.y}) && a.cols % N == 0;
    const auto run_rows = [&](auto how) {
      constexpr Add kAdd = static_cast<Add>(decltype(how)::value);
      return packs && with_row_shape(a.cols / N, [&](auto shape) {
               using Shape = decltype(shape);
               const int threads = Shape::threads(a.cols / N);
               const size_t bytes = Coming<T, N, Shape, kAdd>::bytes(threads);
               const dim3 grid = blocks_that_stay(queue, divide_up(a.rows, Shape::kRows), threads,
                                                  kForwardThreads<Shape, kAdd>, bytes);
               launch(forward_rows_kernel<T, N, Shape, kAdd>, grid,
                      dim3(static_cast<unsigned>(threads)), bytes, queue.stream(), a, added);
             });
    };
    if (add) {
      done = aligned({added.x, added.bias, added.residual}) &&
             add.dropout.sequence_elements % 4 == 0 &&
             (add.dropout ? run_rows(Constant<static_cast<int>(Add::masked)>{})
                          : run_rows(Constant<static_cast<int>(Add::plain)>{}));
      return;
    }
    if (run_rows(Constant<static_cast<int>(Add::nothing)>{})) return;
    const auto run = [&](auto kernel, int team) {
      launch(kernel, blocks_for(queue, a.rows, kBlock / team), dim3(kBlock), 0, queue.stream(), a);
    };
    if (packs) {
      run(forward_kernel<T, N, kBlock>, kBlock);
    } else if (a.cols <= 1024) {
      run(forward_kernel<T, 1, kLanes>, kLanes);
    } else {
      run(forward_kernel<T, 1, kBlock>, kBlock);
    }
  });
  return done;
}

}  // namespace

void layernorm_forward(Queue& queue, const LayerNorm& args) {
  start_forward(queue, {}, args);
}

void add_norm_forward(Queue& queue, const ResidualAdd& add, const LayerNorm& norm) {
  if (start_forward(queue, add, norm)) return;
  bias_dropout_add(queue, add);
  layernorm_forward(queue, norm);
}

}  // namespace mtl::cuda
