// Backward of layer and RMS normalisation. Bytes per element, with s the size of the type: 3 s, 4 s
// with add_to_dx (long rows and those without packs: 5 s or 6 s), and 16 per column and chunk of
// rows for the sums of gamma and beta.
#include "runtime/device/cuda/amax.h"
#include "runtime/device/cuda/column_sums.h"
#include "runtime/device/cuda/rows_ahead.h"

namespace mtl::cuda {

namespace {

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
__device__ inline void write_dx(const Backward<T>& a, int64_t i, const Floats<N>& dy,
                                const Floats<N>& gamma, const Floats<N>& n, float mean_g,
                                float mean_gn, float rstd, Floats<N> dx, Amax<T>& amax) {
  for (int k = 0; k < N; ++k) {
    const float off = fmaf(dy.at[k], gamma.at[k], -mean_g);
    dx.at[k] = fmaf(fmaf(-mean_gn, n.at[k], off), rstd, dx.at[k]);
  }
  store(a.dx + i, dx);
  amax.take(dx);
}

// A block per chunk of rows, whose sums for gamma and beta its threads hold.
template <typename T, int N, typename Shape>
__global__ void __launch_bounds__(512) backward_rows_kernel(Backward<T> a) {
  constexpr int kRows = Shape::kRows, kHeld = Shape::kHeld;
  MTL_DYNAMIC_SHARED(memory);
  RowsAhead<T, N, Shape, 3> coming(memory, a.cols);
  Floats<N> gamma[kHeld];
  MTL_UNROLL_ALL
  for (int j = 0; j < kHeld; ++j) {
    if (!coming.has(j)) continue;
    gamma[j] = load<N>(a.gamma + coming.column(j));
  }
  const int64_t begin = int64_t{blockIdx.x} * a.rows_per_chunk;
  const int64_t end = min(begin + a.rows_per_chunk, a.rows);
  const int lane_row = static_cast<int>(threadIdx.x) % kRows;
  float next_mean = 0, next_rstd = 0;  // of the row that is a lane's
  const auto fetch = [&](int64_t row) {
    if (row < end) {
      const auto live = static_cast<int>(min(end - row, int64_t{kRows}));
      coming.fetch(0, a.x + row * a.cols, live);
      coming.fetch(1, a.dy + row * a.cols, live);
      if (a.add_to_dx) coming.fetch(2, a.dx + row * a.cols, live);
      if (a.mean != nullptr) next_mean = lane_row < live ? a.mean[row + lane_row] : 0.0f;
      next_rstd = lane_row < live ? a.rstd[row + lane_row] : 0.0f;
    }
    coming.fetched();
  };
  BlockSums<2 * kRows, Shape::kMostWarps> block_sums;
  Floats<N> dgamma[kHeld], dbeta[kHeld];
  Amax<T> amax(a.amax);
  fetch(begin);
  for (int64_t row = begin; row < end; row += kRows) {
    float mean[kRows], rstd[kRows];
    for (int r = 0; r < kRows; ++r) {
      mean[r] = __shfl_sync(kAllLanes, next_mean, r);
      rstd[r] = __shfl_sync(kAllLanes, next_rstd, r);
    }
    coming.next();
    fetch(row + kRows);
    coming.wait();
    float sums[2 * kRows] = {};  // of g, then of g (x - mean)
    MTL_UNROLL_ALL
    for (int j = 0; j < kHeld; ++j) {
      if (!coming.has(j)) continue;
      MTL_UNROLL_ALL
      for (int r = 0; r < kRows; ++r) {
        const Floats<N> x = widened(coming.at(0, r, j)), dy = widened(coming.at(1, r, j));
        for (int k = 0; k < N; ++k) {
          const float g = dy.at[k] * gamma[j].at[k];
          sums[r] += g;
          sums[kRows + r] = fmaf(g, x.at[k] - mean[r], sums[kRows + r]);
        }
      }
    }
    const float lane_mean = block_sums(sums) * a.inverse;
    const auto live = static_cast<int>(min(end - row, int64_t{kRows}));
    MTL_UNROLL_ALL
    for (int r = 0; r < kRows; ++r) {
      const float of_g = __shfl_sync(kAllLanes, lane_mean, r);
      const float mean_g = a.mean != nullptr ? of_g : 0.0f;
      const float mean_gn = __shfl_sync(kAllLanes, lane_mean, kRows + r) * rstd[r];
      if (r >= live) continue;
      MTL_UNROLL_ALL
      for (int j = 0; j < kHeld; ++j) {
        if (!coming.has(j)) continue;
        const Floats<N> dy = widened(coming.at(1, r, j));
        Floats<N> n = widened(coming.at(0, r, j)), before;
        if (a.add_to_dx) before = widened(coming.at(2, r, j));
        for (int k = 0; k < N; ++k) {
          n.at[k] = (n.at[k] - mean[r]) * rstd[r];
          dgamma[j].at[k] = fmaf(dy.at[k], n.at[k], dgamma[j].at[k]);
          dbeta[j].at[k] += dy.at[k];
        }
        write_dx<T, N>(a, (row + r) * a.cols + coming.column(j), dy, gamma[j], n, mean_g, mean_gn,
                       rstd[r], before, amax);
      }
    }
  }
  float* const to = a.partials + int64_t{blockIdx.x} * 2 * a.cols;
  MTL_UNROLL_ALL
  for (int j = 0; j < kHeld; ++j) {
    if (!coming.has(j)) continue;
    store(to + coming.column(j), dgamma[j]);
    store(to + a.cols + coming.column(j), dbeta[j]);
  }
  amax.template finish<Shape::kThreads>();
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
    float sums[2] = {};
    Floats<N> dy, gamma, n;
    const auto take = [&](int i) {
      dy = load<N>(a.dy + base + i);
      gamma = load<N>(a.gamma + i);
      n = load<N>(a.x + base + i);
      for (int k = 0; k < N; ++k) n.at[k] = (n.at[k] - mean) * rstd;
    };
    for (int i = static_cast<int>(threadIdx.x) % kTeam * N; i < a.cols; i += kTeam * N) {
      take(i);
      for (int k = 0; k < N; ++k) {
        const float g = dy.at[k] * gamma.at[k];
        sums[0] += g;
        sums[1] += g * n.at[k];
      }
    }
    team_sum<kTeam>(sums, shared);
    const float mean_g = a.mean != nullptr ? sums[0] * a.inverse : 0.0f;
    for (int i = static_cast<int>(threadIdx.x) % kTeam * N; i < a.cols; i += kTeam * N) {
      take(i);
      Floats<N> before;
      if (a.add_to_dx) before = load<N>(a.dx + base + i);
      write_dx<T, N>(a, base + i, dy, gamma, n, mean_g, sums[1] * a.inverse, rstd, before, amax);
    }
  }
  amax.template finish<kBlock>();
}

template <typename T, int N>
struct LoadedRow {
  Pack<T, N> dy, x;
  float mean, rstd;
};
template <typename T>
struct GammaAndBeta {
  const T *dy, *x;
  const float *mean, *rstd;
  int cols;
  __device__ GammaAndBeta from(int64_t row) const {
    return {dy + row * cols, x + row * cols, mean != nullptr ? mean + row : nullptr, rstd + row,
            cols};
  }
  template <int N>
  __device__ LoadedRow<T, N> load(int row, int column) const {
    const int64_t at = int64_t{row} * cols + column;
    return {*reinterpret_cast<const Pack<T, N>*>(dy + at),
            *reinterpret_cast<const Pack<T, N>*>(x + at), mean != nullptr ? mean[row] : 0.0f,
            rstd[row]};
  }
  template <int N>
  __device__ void add(const LoadedRow<T, N>& loaded, Floats<N> (&sums)[2]) const {
    const Floats<N> d = widened(loaded.dy), v = widened(loaded.x);
    for (int k = 0; k < N; ++k) {
      sums[0].at[k] += d.at[k] * ((v.at[k] - loaded.mean) * loaded.rstd);
      sums[1].at[k] += d.at[k];
    }
  }
};

}  // namespace

void layernorm_backward(Queue& queue, const LayerNormBackward& args) {
  const int64_t rows = args.x.rows(), cols = args.x.cols();
  const RowChunks chunks = kernel_scratch::norm_chunks(rows, cols);
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
    if (packs && with_row_shape(cols / N, [&](auto shape) {
          using Shape = decltype(shape);
          const int threads = Shape::threads(cols / N);
          launch(backward_rows_kernel<T, N, Shape>, dim3(static_cast<unsigned>(chunks.count)),
                 dim3(static_cast<unsigned>(threads)), RowsAhead<T, N, Shape, 3>::bytes(threads),
                 queue.stream(), a);
        })) {
      return;
    }
    with_pack<N>(packs, [&](auto pack) {
      constexpr int kPack = decltype(pack)::value;
      column_sums<kPack, 2>(queue, GammaAndBeta<T>{a.dy, a.x, a.mean, a.rstd, a.cols}, rows, cols,
                            chunks, partials);
      if (cols <= 1024) {
        launch(dx_kernel<T, kPack, kLanes>, blocks_for(queue, rows, kBlock / kLanes), dim3(kBlock),
               0, queue.stream(), a);
      } else {
        launch(dx_kernel<T, kPack, kBlock>, blocks_for(queue, rows, 1), dim3(kBlock), 0,
               queue.stream(), a);
      }
    });
  });
  if (!args.dgamma) return;
  combine(queue, partials, chunks.count, 2 * cols, cols, args.dgamma.as<float>(), args.accumulate,
          args.dbeta.as<float>());
}

}  // namespace mtl::cuda
