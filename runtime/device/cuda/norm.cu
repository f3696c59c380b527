// Layer and RMS normalisation. Bytes per element, with s the size of the type: forward 2 s (rows
// too long for registers are read three times, the second and third mostly from the L2 cache), with
// the residual addition before it 4 s;
// backward 3 s, 4 s with add_to_dx (long rows and those without packs: 5 s or 6 s), and 16 per
// column and chunk of rows for the sums of gamma and beta.
//
// A row is the work of a team: a warp (up to 4 packs per lane), else a block; backward, where a
// block has few rows under way, two or four warps between. Mean first, then the variance about it,
// both from the same registers: no cancellation for rows far from zero.
#include "runtime/device/cuda/amax.h"
#include "runtime/device/cuda/column_sums.h"

namespace mtl::cuda {

namespace {

constexpr int kHeldPacks = 4;  // of a row's elements per thread, at most

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
};

// A pack of out, as written: dropout.cu's arithmetic.
template <typename T, int N, Add kAdd>
__device__ inline Pack<T, N> add_pack(const Added<T>& a, const Mask& mask, int64_t at, int column,
                                      const Pack<T, N>& x, const Pack<T, N>& residual, T* out) {
  Floats<N> values;
  for (int k = 0; k < N; ++k) values.at[k] = to_float(x.at[k]);
  if (a.bias != nullptr) {
    const Floats<N> bias = load<N>(a.bias + column);
    for (int k = 0; k < N; ++k) values.at[k] += bias.at[k];
  }
  if constexpr (kAdd == Add::masked) {
    const Floats<N> factors = mask_factors<N>(mask, mask.first + static_cast<uint64_t>(at));
    for (int k = 0; k < N; ++k) values.at[k] *= factors.at[k];
  }
  for (int k = 0; k < N; ++k) values.at[k] += to_float(residual.at[k]);
  Pack<T, N> rounded;
  for (int k = 0; k < N; ++k) rounded.at[k] = from_float<T>(values.at[k]);
  store(out + at, values);
  return rounded;
}

// f(i, Floats<N>) for a team's packs of a row: from registers (kHeld packs per thread), or read
// again at each call (kHeld = 0).
template <typename T, int N, int kTeam, int kHeld>
class Row {
 public:
  __device__ Row(const T* x, int cols) : x_(x), cols_(cols), rank_(threadIdx.x % kTeam) {}
  // From x, what registers hold of it.
  __device__ void fetch(const T* x) {
    for (int j = 0; j < kHeld; ++j) {
      if (at(j) < cols_) held_[j] = *reinterpret_cast<const Pack<T, N>*>(x + at(j));
    }
  }
  // A pack of it becomes f(i, it, that of another row).
  template <typename F>
  __device__ void join(const Row& other, F f) {
    for (int j = 0; j < kHeld; ++j) {
      if (at(j) < cols_) held_[j] = f(at(j), held_[j], other.held_[j]);
    }
  }
  template <typename F>
  __device__ void each(F f) const {
    if constexpr (kHeld > 0) {
      for (int j = 0; j < kHeld; ++j) {
        if (at(j) < cols_) f(at(j), widened(held_[j]));
      }
    } else {
      MTL_UNROLL(4)
      for (int i = rank_ * N; i < cols_; i += kTeam * N) f(i, load<N>(x_ + i));
    }
  }

 private:
  __device__ int at(int j) const { return (j * kTeam + rank_) * N; }
  __device__ static Floats<N> widened(const Pack<T, N>& pack) {
    Floats<N> result;
    for (int k = 0; k < N; ++k) result.at[k] = to_float(pack.at[k]);
    return result;
  }
  const T* x_;
  int cols_, rank_;
  Pack<T, N> held_[kHeld > 0 ? kHeld : 1] = {};
};

// Blocks of a multiprocessor: as many as have registers for what a thread holds. With the words of
// a mask beside four packs that are two, which have 64 KB under way all the same; with three, 88
// bytes of a thread went to memory and came back.
template <int kHeld, Add kAdd>
[[maybe_unused]] constexpr int kForwardBlocks = kHeld > 2 ? (kAdd == Add::masked ? 2 : 3) : 4;

template <typename T, int N, int kTeam, int kHeld, Add kAdd>
__global__ void __launch_bounds__(kBlock, kForwardBlocks<kHeld, kAdd>)
    forward_kernel(Forward<T> a, Added<T> add) {
  static_assert(kAdd == Add::nothing || kHeld > 0);
  __shared__ float shared[kWarps];
  Mask mask;
  if constexpr (kAdd == Add::masked) {
    mask = mask_of(add.mask);
    mask.first += add.first_element;
  }
  constexpr int kTeams = kBlock / kTeam;
  const bool first = threadIdx.x % kTeam == 0;
  Amax<T> amax(a.amax);
  const float inverse = 1.0f / static_cast<float>(a.cols);
  for (int64_t row = int64_t{blockIdx.x} * kTeams + threadIdx.x / kTeam; row < a.rows;
       row += int64_t{gridDim.x} * kTeams) {
    Row<T, N, kTeam, kHeld> x(a.x + row * a.cols, a.cols);
    if constexpr (kAdd == Add::nothing) {
      x.fetch(a.x + row * a.cols);
    } else {
      // All loads before the first store, which nvcc lets none overtake.
      Row<T, N, kTeam, kHeld> residual(a.x + row * a.cols, a.cols);
      x.fetch(add.x + row * a.cols);
      residual.fetch(add.residual + row * a.cols);
      x.join(residual, [&](int i, const Pack<T, N>& from, const Pack<T, N>& to) {
        return add_pack<T, N, kAdd>(add, mask, row * a.cols + i, i, from, to, a.x);
      });
    }
    float mean = 0;
    if (a.mean != nullptr) {
      float sum[1] = {};
      x.each([&](int, const Floats<N>& values) {
        for (int k = 0; k < N; ++k) sum[0] += values.at[k];
      });
      team_sum<kTeam>(sum, shared);
      mean = sum[0] * inverse;
      if (first) a.mean[row] = mean;
    }
    float squares[1] = {};
    x.each([&](int, const Floats<N>& values) {
      for (int k = 0; k < N; ++k) squares[0] += (values.at[k] - mean) * (values.at[k] - mean);
    });
    team_sum<kTeam>(squares, shared);
    const float rstd = 1.0f / sqrtf(squares[0] * inverse + a.eps);
    if (first) a.rstd[row] = rstd;
    T* const y = a.y + row * a.cols;
    x.each([&](int i, Floats<N> values) {
      const Floats<N> gamma = load<N>(a.gamma + i);
      Floats<N> beta;
      if (a.beta != nullptr) beta = load<N>(a.beta + i);
      for (int k = 0; k < N; ++k) {
        values.at[k] = (values.at[k] - mean) * rstd * gamma.at[k] + beta.at[k];
      }
      store(y + i, values);
      amax.take(values);
    });
  }
  amax.template finish<kBlock>();
}

template <typename T>
struct Backward {
  const T *dy, *x, *gamma;
  const float *mean, *rstd;
  T* dx;
  int64_t rows;
  int cols;
  bool add_to_dx;
  int64_t rows_per_chunk;
  float* partials;  // [chunks, 2, cols]: the sums for gamma, then those for beta
  float inverse;    // 1 / cols
  uint32_t* amax;
};

// With n = (x - mean) rstd and g = dy gamma:
//   dx = rstd (g - mean(g) - n mean(g n)),  dgamma = sum dy n,  dbeta = sum dy.
// Without mean: n = x rstd, and dx without mean(g).
template <typename T, int N>
__device__ inline void write_dx(const Backward<T>& a, int64_t i, Floats<N> g, const Floats<N>& n,
                                float mean_g, float mean_gn, float rstd, const Pack<T, N>& before,
                                Amax<T>& amax) {
  for (int k = 0; k < N; ++k) {
    g.at[k] = (g.at[k] - mean_g - n.at[k] * mean_gn) * rstd + to_float(before.at[k]);
  }
  store(a.dx + i, g);
  amax.take(g);
}

// Keeps the compiler from holding a pack's elements widened, too, over a sum of the team: it would
// need twice the registers.
template <typename T, int N>
__device__ inline void forget_widened([[maybe_unused]] Pack<T, N>& pack) {
#if defined(__CUDACC__)
  static_assert(sizeof pack == 16);
  auto* const words = reinterpret_cast<uint32_t*>(&pack);
  asm volatile("" : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3]));
#endif
}

// A block per chunk of rows; threads hold a row's x and dy, and the sums for gamma and beta of
// their columns over all the rows their team takes. A multiprocessor has two blocks, 16 warps, that
// load a row, sum and write it: the fewer of them share a row, and the fewer idle, the more is
// under way. (The memory wants 30 to 40 KB; 16 warps to a row of 1,600, GPT-2 1.5B's, would load 6
// KB.)
template <typename T, int N, int kTeam, int kHeld>
__global__ void __launch_bounds__(kBlock, kHeld > 3 ? 1 : 2) backward_kernel(Backward<T> a) {
  constexpr int kTeams = kBlock / kTeam, kWidth = kTeam * kHeld * N;
  __shared__ float shared[2 * kWarps];
  const int team = static_cast<int>(threadIdx.x) / kTeam;
  const int rank = static_cast<int>(threadIdx.x) % kTeam;
  Floats<N> dgamma[kHeld], dbeta[kHeld];
  Amax<T> amax(a.amax);
  const int64_t begin = int64_t{blockIdx.x} * a.rows_per_chunk;
  const auto count = static_cast<int>(min(a.rows_per_chunk, a.rows - begin));
  for (int r = team; r < count; r += kTeams) {
    const int64_t row = begin + r, base = row * a.cols;
    // All loads at once, before the first store, which nvcc lets none overtake.
    Pack<T, N> x[kHeld] = {}, dy[kHeld] = {}, before[kHeld] = {};
    for (int j = 0; j < kHeld; ++j) {
      const int i = (j * kTeam + rank) * N;
      if (i >= a.cols) continue;
      x[j] = *reinterpret_cast<const Pack<T, N>*>(a.x + base + i);
      dy[j] = *reinterpret_cast<const Pack<T, N>*>(a.dy + base + i);
      if (a.add_to_dx) before[j] = *reinterpret_cast<const Pack<T, N>*>(a.dx + base + i);
    }
    const float mean = a.mean != nullptr ? a.mean[row] : 0.0f, rstd = a.rstd[row];
    float sums[2] = {};
    for (int j = 0; j < kHeld; ++j) {
      const int i = (j * kTeam + rank) * N;
      if (i >= a.cols) continue;
      const Floats<N> gamma = load<N>(a.gamma + i);
      for (int k = 0; k < N; ++k) {
        const float d = to_float(dy[j].at[k]), n = (to_float(x[j].at[k]) - mean) * rstd;
        const float g = d * gamma.at[k];
        sums[0] += g;
        sums[1] += g * n;
        dgamma[j].at[k] += d * n;
        dbeta[j].at[k] += d;
      }
    }
    team_sum<kTeam, kBlock>(sums, shared);
    const float mean_g = a.mean != nullptr ? sums[0] * a.inverse : 0.0f;
    const float mean_gn = sums[1] * a.inverse;
    for (int j = 0; j < kHeld; ++j) {
      const int i = (j * kTeam + rank) * N;
      if (i >= a.cols) continue;
      forget_widened(x[j]);
      forget_widened(dy[j]);
      Floats<N> g = load<N>(a.gamma + i), n;
      for (int k = 0; k < N; ++k) {
        g.at[k] *= to_float(dy[j].at[k]);
        n.at[k] = (to_float(x[j].at[k]) - mean) * rstd;
      }
      write_dx<T, N>(a, base + i, g, n, mean_g, mean_gn, rstd, before[j], amax);
    }
  }
  amax.template finish<kBlock>();
  float* const to = a.partials + int64_t{blockIdx.x} * 2 * a.cols;
  if constexpr (kTeams == 1) {
    for (int j = 0; j < kHeld; ++j) {
      const int i = (j * kTeam + rank) * N;
      if (i >= a.cols) continue;
      store(to + i, dgamma[j]);
      store(to + a.cols + i, dbeta[j]);
    }
  } else {
    // The teams' sums are added in order.
    constexpr int kPiece = N < 4 ? N : 4;
    alignas(16) __shared__ float both[2][kTeams > 1 ? kWidth : 1];
    for (int t = 0; t < kTeams; ++t) {
      __syncthreads();
      if (team != t) continue;
      for (int j = 0; j < kHeld; ++j) {
        const int i = (j * kTeam + rank) * N;
        // 16 bytes at once: of single ones the lanes' addresses are N apart, N to a bank.
        for (int first = 0; first < N; first += kPiece) {
          auto& gammas = *reinterpret_cast<Pack<float, kPiece>*>(&both[0][i + first]);
          auto& betas = *reinterpret_cast<Pack<float, kPiece>*>(&both[1][i + first]);
          Pack<float, kPiece> gamma = {}, beta = {};
          if (t > 0) {
            gamma = gammas;
            beta = betas;
          }
          for (int k = 0; k < kPiece; ++k) {
            const float to_gamma = dgamma[j].at[first + k], to_beta = dbeta[j].at[first + k];
            gamma.at[k] = t == 0 ? to_gamma : gamma.at[k] + to_gamma;
            beta.at[k] = t == 0 ? to_beta : beta.at[k] + to_beta;
          }
          gammas = gamma;
          betas = beta;
        }
      }
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < a.cols; i += kBlock) {
      to[i] = both[0][i];
      to[a.cols + i] = both[1][i];
    }
  }
}

// Any row: dx alone, reading twice. The sums for gamma and beta are then sums over columns.
template <typename T, int N, int kTeam>
__global__ void __launch_bounds__(kBlock) dx_kernel(Backward<T> a) {
  __shared__ float shared[2 * kWarps];
  constexpr int kTeams = kBlock / kTeam;
  Amax<T> amax(a.amax);
  for (int64_t row = int64_t{blockIdx.x} * kTeams + threadIdx.x / kTeam; row < a.rows;
       row += int64_t{gridDim.x} * kTeams) {
    const int64_t base = row * a.cols;
    const float mean = a.mean != nullptr ? a.mean[row] : 0.0f, rstd = a.rstd[row];
    const auto pack = [&](int i, Floats<N>& g, Floats<N>& n) {
      g = load<N>(a.gamma + i);
      n = load<N>(a.x + base + i);
      const Floats<N> dy = load<N>(a.dy + base + i);
      for (int k = 0; k < N; ++k) {
        g.at[k] *= dy.at[k];
        n.at[k] = (n.at[k] - mean) * rstd;
      }
    };
    float sums[2] = {};
    Floats<N> g, n;
    for (int i = static_cast<int>(threadIdx.x) % kTeam * N; i < a.cols; i += kTeam * N) {
      pack(i, g, n);
      for (int k = 0; k < N; ++k) {
        sums[0] += g.at[k];
        sums[1] += g.at[k] * n.at[k];
      }
    }
    team_sum<kTeam>(sums, shared);
    const float mean_g = a.mean != nullptr ? sums[0] * a.inverse : 0.0f;
    for (int i = static_cast<int>(threadIdx.x) % kTeam * N; i < a.cols; i += kTeam * N) {
      pack(i, g, n);
      Pack<T, N> before = {};
      if (a.add_to_dx) before = *reinterpret_cast<const Pack<T, N>*>(a.dx + base + i);
      write_dx<T, N>(a, base + i, g, n, mean_g, sums[1] * a.inverse, rstd, before, amax);
    }
  }
  amax.template finish<kBlock>();
}

template <typename T>
struct GammaAndBeta {
  const T *dy, *x;
  const float *mean, *rstd;
  int64_t cols;
  template <int N>
  __device__ void add(int64_t row, int64_t column, Floats<N> (&sums)[2]) const {
    const Floats<N> d = load<N>(dy + row * cols + column), v = load<N>(x + row * cols + column);
    const float center = mean != nullptr ? mean[row] : 0.0f, r = rstd[row];
    for (int k = 0; k < N; ++k) {
      sums[0].at[k] += d.at[k] * ((v.at[k] - center) * r);
      sums[1].at[k] += d.at[k];
    }
  }
};

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
    const Added<T> added = {add.x.as<const T>(), add.bias.as<const T>(), add.residual.as<const T>(),
                            EnqueuedMask(add.dropout),
                            static_cast<uint64_t>(add.first_row * args.x.cols())};
    constexpr int N = kPackOf<T>, kLanes = static_cast<int>(kWarp);
    const bool packs = aligned({a.x, a.gamma, a.beta, a.y}) && a.cols % N == 0;
    const bool held = packs && a.cols <= kBlock * kHeldPacks * N;
    const auto run = [&](auto kernel, int team) {
      launch(kernel, blocks_for(queue, a.rows, kBlock / team), dim3(kBlock), 0, queue.stream(), a,
             added);
    };
    const auto run_held = [&](auto how) {
      constexpr Add kAdd = static_cast<Add>(decltype(how)::value);
      if (a.cols <= kLanes * kHeldPacks * N) {
        run(forward_kernel<T, N, kLanes, kHeldPacks, kAdd>, kLanes);
      } else if (a.cols <= kBlock * 2 * N) {
        run(forward_kernel<T, N, kBlock, 2, kAdd>, kBlock);
      } else {
        run(forward_kernel<T, N, kBlock, kHeldPacks, kAdd>, kBlock);
      }
    };
    if (add) {
      done = held && aligned({added.x, added.bias, added.residual}) &&
             add.dropout.sequence_elements % 4 == 0;
      if (!done) return;
      if (add.dropout) {
        run_held(Constant<static_cast<int>(Add::masked)>{});
      } else {
        run_held(Constant<static_cast<int>(Add::plain)>{});
      }
    } else if (held) {
      run_held(Constant<static_cast<int>(Add::nothing)>{});
    } else if (packs) {
      run(forward_kernel<T, N, kBlock, 0, Add::nothing>, kBlock);
    } else if (a.cols <= 1024) {
      run(forward_kernel<T, 1, kLanes, 0, Add::nothing>, kLanes);
    } else {
      run(forward_kernel<T, 1, kBlock, 0, Add::nothing>, kBlock);
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

void layernorm_backward(Queue& queue, const LayerNormBackward& args) {
  const int64_t rows = args.x.rows(), cols = args.x.cols();
  const RowChunks chunks = kernel_scratch::norm_chunks(rows);
  auto* partials = static_cast<float*>(queue.scratch(kernel_scratch::norm_backward(rows, cols)));
  with_type(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const Backward<T> a = {args.dy.as<const T>(),
                           args.x.as<const T>(),
                           args.gamma.as<const T>(),
                           args.mean.as<const float>(),
                           args.rstd.as<const float>(),
                           args.dx.as<T>(),
                           rows,
                           static_cast<int>(cols),
                           args.add_to_dx,
                           chunks.rows,
                           partials,
                           1.0f / static_cast<float>(cols),
                           args.amax.as<uint32_t>()};
    constexpr int N = kPackOf<T>, kLanes = static_cast<int>(kWarp);
    const bool packs = aligned({a.dy, a.x, a.gamma, a.dx}) && cols % N == 0;
    const auto run = [&](auto kernel) {
      launch(kernel, dim3(static_cast<unsigned>(chunks.count)), dim3(kBlock), 0, queue.stream(), a);
    };
    if (packs && cols <= kLanes * 3 * N) {
      run(backward_kernel<T, N, kLanes, 3>);
    } else if (packs && cols <= 2 * kLanes * 2 * N) {
      run(backward_kernel<T, N, 2 * kLanes, 2>);
    } else if (packs && cols <= 4 * kLanes * 2 * N) {
      run(backward_kernel<T, N, 4 * kLanes, 2>);
    } else if (packs && cols <= kBlock * 2 * N) {
      run(backward_kernel<T, N, kBlock, 2>);
    } else if (packs && cols <= kBlock * kHeldPacks * N) {
      run(backward_kernel<T, N, kBlock, kHeldPacks>);
    } else {
      with_pack<N>(packs, [&](auto pack) {
        constexpr int kPack = decltype(pack)::value;
        column_sums<kPack, 2>(queue, GammaAndBeta<T>{a.dy, a.x, a.mean, a.rstd, cols}, rows, cols,
                              chunks, partials);
        if (cols <= 1024) {
          launch(dx_kernel<T, kPack, kLanes>, blocks_for(queue, rows, kBlock / kLanes),
                 dim3(kBlock), 0, queue.stream(), a);
        } else {
          launch(dx_kernel<T, kPack, kBlock>, blocks_for(queue, rows, 1), dim3(kBlock), 0,
                 queue.stream(), a);
        }
      });
    }
  });
  combine(queue, partials, chunks.count, 2 * cols, cols, args.dgamma.as<float>(), args.accumulate,
          args.dbeta.as<float>());
}

}  // namespace mtl::cuda
