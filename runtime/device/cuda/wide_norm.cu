// RMS normalisation of columns of a row as one vector, in place, in two steps: between them sums go
// over ranks. Bytes per element of the columns, with s the size of the type: squares s, forward
// 3 s, products 2 s, backward 3 s.
//
// A row of squares, forward and products is the work of a warp, or of a block where it is long. In
// backward a block has 32 packs of columns of a chunk of rows, so that gamma and the sums for it
// stay in registers.
#include "runtime/device/cuda/column_sums.h"

namespace mtl::cuda {

namespace {

// Pointers are at the first of the columns.
template <typename T>
struct WideRows {
  T *x, *raw;  // forward: x is read and written, raw written; backward: dx and raw
  const T* gamma;
  float *squares, *products;
  float* partials;  // backward: [chunks, columns]
  int64_t rows, stride, raw_stride;
  int columns;
  float inverse, eps;
  int64_t rows_per_chunk;

  __device__ float rstd(int64_t row) const { return 1.0f / sqrtf(squares[row] * inverse + eps); }
};

template <typename T, int N>
__device__ inline Pack<T, N> pack_at(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}

// body(row, rank) for the rows of a team, by each of its threads.
template <int kTeam, typename Body>
__device__ inline void each_row(int64_t rows, Body body) {
  constexpr int kTeams = kBlock / kTeam;
  const int rank = static_cast<int>(threadIdx.x) % kTeam;
  for (int64_t row = int64_t{blockIdx.x} * kTeams + threadIdx.x / kTeam; row < rows;
       row += int64_t{gridDim.x} * kTeams) {
    body(row, rank);
  }
}

template <typename T, int N, int kTeam>
__global__ void __launch_bounds__(kBlock) wide_squares_kernel(WideRows<T> a) {
  __shared__ float shared[kWarps];
  each_row<kTeam>(a.rows, [&](int64_t row, int rank) {
    const T* const x = a.x + row * a.stride;
    float sum[1] = {};
    each_ahead<4>(
        rank * N, a.columns, kTeam * N, [&](int i) { return pack_at<T, N>(x + i); },
        [&](const Pack<T, N>& pack) {
          const Floats<N> values = widened(pack);
          for (int k = 0; k < N; ++k) sum[0] += values.at[k] * values.at[k];
        });
    team_sum<kTeam>(sum, shared);
    if (rank == 0) a.squares[row] = sum[0];
  });
}

template <typename T, int N, int kTeam>
__global__ void __launch_bounds__(kBlock) wide_forward_kernel(WideRows<T> a) {
  struct Coming {
    Pack<T, N> x, gamma;
    int i;
  };
  each_row<kTeam>(a.rows, [&](int64_t row, int rank) {
    T* const x = a.x + row * a.stride;
    T* const raw = a.raw + row * a.raw_stride;
    const float rstd = a.rstd(row);
    each_ahead<2>(
        rank * N, a.columns, kTeam * N,
        [&](int i) {
          return Coming{pack_at<T, N>(x + i), pack_at<T, N>(a.gamma + i), i};
        },
        [&](const Coming& here) {
          Floats<N> values = widened(here.x);
          const Floats<N> gamma = widened(here.gamma);
          store(raw + here.i, values);
          for (int k = 0; k < N; ++k) values.at[k] = values.at[k] * rstd * gamma.at[k];
          store(x + here.i, values);
        });
  });
}

template <typename T, int N, int kTeam>
__global__ void __launch_bounds__(kBlock) wide_products_kernel(WideRows<T> a) {
  struct Coming {
    Pack<T, N> dy, x, gamma;
  };
  __shared__ float shared[kWarps];
  each_row<kTeam>(a.rows, [&](int64_t row, int rank) {
    const T* const dy = a.x + row * a.stride;
    const T* const x = a.raw + row * a.raw_stride;
    const float rstd = a.rstd(row);
    float sum[1] = {};
    each_ahead<2>(
        rank * N, a.columns, kTeam * N,
        [&](int i) {
          return Coming{pack_at<T, N>(dy + i), pack_at<T, N>(x + i), pack_at<T, N>(a.gamma + i)};
        },
        [&](const Coming& here) {
          const Floats<N> d = widened(here.dy), n = widened(here.x), gamma = widened(here.gamma);
          for (int k = 0; k < N; ++k) sum[0] += d.at[k] * gamma.at[k] * (n.at[k] * rstd);
        });
    team_sum<kTeam>(sum, shared);
    if (rank == 0) a.products[row] = sum[0];
  });
}

// With n = x rstd and g = dy gamma:  dx = rstd (g - n mean(g n)),  dgamma = sum dy n. Warp w takes
// rows w, w + 8, ... of the chunk.
template <typename T, int N>
__global__ void __launch_bounds__(kBlock, 3) wide_backward_kernel(WideRows<T> a) {
  struct Coming {
    Pack<T, N> dy, x;
    float squares, products;
    int row;
  };
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int64_t first_column = int64_t{blockIdx.x} * kWarp * N;
  const int64_t column = first_column + lane * N;
  const int64_t begin = int64_t{blockIdx.y} * a.rows_per_chunk;
  const auto count = static_cast<int>(min(a.rows_per_chunk, a.rows - begin));
  Floats<N> sums[1];
  if (column < a.columns) {
    T* const dx = a.x + begin * a.stride + column;
    const T* const x = a.raw + begin * a.raw_stride + column;
    const Floats<N> gamma = load<N>(a.gamma + column);
    each_ahead<2>(
        warp, count, kWarps,
        [&](int row) {
          return Coming{pack_at<T, N>(dx + row * a.stride), pack_at<T, N>(x + row * a.raw_stride),
                        a.squares[begin + row], a.products[begin + row], row};
        },
        [&](const Coming& here) {
          const float rstd = 1.0f / sqrtf(here.squares * a.inverse + a.eps);
          const float mean = here.products * a.inverse;
          Floats<N> d = widened(here.dy);
          const Floats<N> values = widened(here.x);
          for (int k = 0; k < N; ++k) {
            const float n = values.at[k] * rstd;
            sums[0].at[k] += d.at[k] * n;
            d.at[k] = (d.at[k] * gamma.at[k] - n * mean) * rstd;
          }
          store(dx + here.row * a.stride, d);
        });
  }
  add_warps<N>(sums, first_column, a.columns, blockIdx.y, a.partials);
}

template <typename T, typename Given>
WideRows<T> wide_rows_of(const Given& args, const Tensor& x) {
  WideRows<T> rows = {};
  rows.x = x.as<T>() + args.first_column;
  rows.squares = args.squares.template as<float>();
  rows.rows = x.rows();
  rows.stride = x.cols();
  rows.columns = static_cast<int>(args.columns);
  rows.inverse = args.inverse;
  rows.eps = args.eps;
  return rows;
}
// For all but the squares.
template <typename T, typename Given>
WideRows<T> all_of(const Given& args, const Tensor& x) {
  WideRows<T> rows = wide_rows_of<T>(args, x);
  rows.raw = args.raw.template as<T>() + args.first_column;
  rows.raw_stride = args.raw.cols();
  rows.gamma = args.gamma.template as<const T>();
  return rows;
}

// body(Constant<N>). Where there is no raw and no gamma, both fit.
template <typename T, typename Body>
void with_columns(const WideRows<T>& a, Body body) {
  constexpr int N = kPackOf<T>;
  with_pack<N>(aligned({a.x, a.raw, a.gamma}) && a.columns % N == 0 && a.stride % N == 0 &&
                   a.raw_stride % N == 0,
               body);
}
// body(Constant<N>, Constant<kTeam>). By the columns alone: of few rows the sums have the same bits
// as of many.
template <typename T, typename Body>
void with_team(const WideRows<T>& a, Body body) {
  constexpr int kMostPacks = 16;  // of a lane
  with_columns(a, [&](auto pack) {
    if (a.columns <= static_cast<int>(kWarp) * kMostPacks * decltype(pack)::value) {
      body(pack, Constant<static_cast<int>(kWarp)>{});
    } else {
      body(pack, Constant<kBlock>{});
    }
  });
}
template <typename T>
dim3 teams_for(const Queue& queue, const WideRows<T>& a, int team) {
  return blocks_for(queue, a.rows, kBlock / team);
}

}  // namespace

void wide_norm_squares(Queue& queue, const WideNorm& args) {
  with_type(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const WideRows<T> a = wide_rows_of<T>(args, args.x);
    with_team(a, [&](auto pack, auto team) {
      launch(wide_squares_kernel<T, decltype(pack)::value, decltype(team)::value>,
             teams_for(queue, a, decltype(team)::value), dim3(kBlock), 0, queue.stream(), a);
    });
  });
}

void wide_norm_forward(Queue& queue, const WideNorm& args) {
  with_type(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const WideRows<T> a = all_of<T>(args, args.x);
    with_team(a, [&](auto pack, auto team) {
      launch(wide_forward_kernel<T, decltype(pack)::value, decltype(team)::value>,
             teams_for(queue, a, decltype(team)::value), dim3(kBlock), 0, queue.stream(), a);
    });
  });
}

void wide_norm_products(Queue& queue, const WideNormBackward& args) {
  with_type(args.dx.dtype, [&](auto type) {
    using T = decltype(type);
    WideRows<T> a = all_of<T>(args, args.dx);
    a.products = args.products.as<float>();
    with_team(a, [&](auto pack, auto team) {
      launch(wide_products_kernel<T, decltype(pack)::value, decltype(team)::value>,
             teams_for(queue, a, decltype(team)::value), dim3(kBlock), 0, queue.stream(), a);
    });
  });
}

void wide_norm_backward(Queue& queue, const WideNormBackward& args) {
  const int64_t rows = args.dx.rows(), columns = args.columns;
  const RowChunks chunks = kernel_scratch::wide_norm_chunks(rows);
  auto* partials =
      static_cast<float*>(queue.scratch(kernel_scratch::wide_norm_backward(rows, columns)));
  with_type(args.dx.dtype, [&](auto type) {
    using T = decltype(type);
    WideRows<T> a = all_of<T>(args, args.dx);
    a.products = args.products.as<float>();
    a.partials = partials;
    a.rows_per_chunk = chunks.rows;
    with_columns(a, [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      const dim3 grid(static_cast<unsigned>(divide_up(columns, int64_t{kWarp} * N)),
                      static_cast<unsigned>(chunks.count));
      launch(wide_backward_kernel<T, N>, grid, dim3(kBlock), 0, queue.stream(), a);
    });
  });
  if (!args.dgamma) return;
  combine(queue, partials, chunks.count, columns, columns, args.dgamma.as<float>(),
          args.accumulate);
}

}  // namespace mtl::cuda
