// RMS normalisation of each head's vector, in place: one pass. Bytes per element of the heads, with
// s the size of the type: forward 3 s, backward 3 s; 4 more per head for rstd.
//
// A head is the work of kLanes neighbouring lanes (8 for 64 elements of 16 bits): each holds one
// pack of it, sums go by shuffles. Heads beyond 32 packs, and those without packs, are the work of
// a warp that reads its elements again instead of holding them.
#include "runtime/device/cuda/kernels.h"

namespace mtl::cuda {

namespace {

template <typename T>
struct Args {
  T *x, *raw;  // forward: x is read and written, raw written; backward: dx and raw
  const T* gamma;
  float* rstd;
  float* partials;  // backward: [chunks, dim]
  int64_t rows, stride, raw_stride;
  int heads, dim;
  float eps;
  int64_t rows_per_chunk;
};

template <int kLanes>
__device__ inline float lanes_sum(float x) {
  for (unsigned step = kLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

template <typename T, int N, int kLanes, bool kHeld>
__global__ void __launch_bounds__(kBlock, 4) forward_kernel(Args<T> a) {
  constexpr int kGroups = static_cast<int>(kWarp) / kLanes;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int group = lane / kLanes, rank = lane % kLanes;
  const float inverse = 1.0f / static_cast<float>(a.dim);
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; row < a.rows;
       row += warps) {
    // All groups go round equally often: the shuffles need every lane.
    for (int first = 0; first < a.heads; first += kGroups) {
      const int head = first + group;
      const bool here = head < a.heads;
      T* const x = a.x + row * a.stride + int64_t{head} * a.dim;
      T* const raw = a.raw + row * a.raw_stride + int64_t{head} * a.dim;
      Floats<N> held;
      float squares = 0;
      for (int i = rank * N; here && i < a.dim; i += kLanes * N) {
        held = load<N>(x + i);
        store(raw + i, held);
        for (int k = 0; k < N; ++k) squares += held.at[k] * held.at[k];
      }
      const float rstd = 1.0f / sqrtf(lanes_sum<kLanes>(squares) * inverse + a.eps);
      if (here && rank == 0) a.rstd[row * a.heads + head] = rstd;
      for (int i = rank * N; here && i < a.dim; i += kLanes * N) {
        if constexpr (!kHeld) held = load<N>(x + i);
        const Floats<N> gamma = load<N>(a.gamma + i);
        for (int k = 0; k < N; ++k) held.at[k] = held.at[k] * rstd * gamma.at[k];
        store(x + i, held);
      }
    }
  }
}

// With n = x rstd and g = dy gamma:  dx = rstd (g - n mean(g n)),  dgamma = sum dy n. A block's
// rows are a chunk's; each group of lanes sums for gamma over its own heads, then they are added in
// order.
template <typename T, int N, int kLanes, bool kHeld>
__global__ void __launch_bounds__(kBlock, 3) backward_kernel(Args<T> a) {
  MTL_DYNAMIC_SHARED(memory);
  constexpr int kGroups = static_cast<int>(kWarp) / kLanes;
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int group = lane / kLanes, rank = lane % kLanes;
  const float inverse = 1.0f / static_cast<float>(a.dim);
  float* const sums = reinterpret_cast<float*>(memory);  // [kWarps * kGroups, dim]
  float* const mine = sums + (warp * kGroups + group) * a.dim;
  Floats<N> held_sums;
  if constexpr (!kHeld) {
    for (int i = rank; i < a.dim; i += kLanes) mine[i] = 0;  // N is 1, or a lane's packs its own
    __syncwarp();
  }
  const int64_t begin = int64_t{blockIdx.x} * a.rows_per_chunk;
  const int64_t end = min(begin + a.rows_per_chunk, a.rows);
  for (int64_t row = begin + warp; row < end; row += kWarps) {
    for (int first = 0; first < a.heads; first += kGroups) {
      const int head = first + group;
      const bool here = head < a.heads;
      T* const dx = a.x + row * a.stride + int64_t{head} * a.dim;
      const T* const x = a.raw + row * a.raw_stride + int64_t{head} * a.dim;
      const float rstd = here ? a.rstd[row * a.heads + head] : 0.0f;
      Floats<N> g, n;
      float sum = 0;
      for (int i = rank * N; here && i < a.dim; i += kLanes * N) {
        g = load<N>(dx + i);
        n = load<N>(x + i);
        const Floats<N> gamma = load<N>(a.gamma + i);
        for (int k = 0; k < N; ++k) {
          n.at[k] *= rstd;
          const float dyn = g.at[k] * n.at[k];
          if constexpr (kHeld) {
            held_sums.at[k] += dyn;
          } else {
            mine[i + k] += dyn;
          }
          g.at[k] *= gamma.at[k];
          sum += dyn * gamma.at[k];
        }
      }
      const float mean = lanes_sum<kLanes>(sum) * inverse;
      for (int i = rank * N; here && i < a.dim; i += kLanes * N) {
        if constexpr (!kHeld) {
          g = load<N>(dx + i);
          n = load<N>(x + i);
          const Floats<N> gamma = load<N>(a.gamma + i);
          for (int k = 0; k < N; ++k) n.at[k] *= rstd, g.at[k] *= gamma.at[k];
        }
        for (int k = 0; k < N; ++k) g.at[k] = (g.at[k] - n.at[k] * mean) * rstd;
        store(dx + i, g);
      }
    }
  }
  if constexpr (kHeld) {
    if (rank * N < a.dim) {
      for (int k = 0; k < N; ++k) mine[rank * N + k] = held_sums.at[k];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < a.dim; i += kBlock) {
    float sum = sums[i];
    for (int g = 1; g < kWarps * kGroups; ++g) sum += sums[g * a.dim + i];
    a.partials[int64_t{blockIdx.x} * a.dim + i] = sum;
  }
}

// body(Constant<N>, Constant<kLanes>, std::bool_constant<kHeld>)
template <typename T, typename Body>
void with_lanes(const Args<T>& a, Body body) {
  constexpr int N = kPackOf<T>;
  const bool packs = aligned({a.x, a.raw, a.gamma}) && a.dim % N == 0 && a.stride % N == 0 &&
                     a.raw_stride % N == 0;
  if (!packs) {
    body(Constant<1>{}, Constant<32>{}, std::false_type{});
  } else if (a.dim <= 8 * N) {
    body(Constant<N>{}, Constant<8>{}, std::true_type{});
  } else if (a.dim <= 16 * N) {
    body(Constant<N>{}, Constant<16>{}, std::true_type{});
  } else if (a.dim <= 32 * N) {
    body(Constant<N>{}, Constant<32>{}, std::true_type{});
  } else {
    body(Constant<1>{}, Constant<32>{}, std::false_type{});
  }
}

template <typename T, typename Given>
Args<T> args_of(const Given& args, const Tensor& x) {
  return {.x = x.as<T>() + args.first_column,
          .raw = args.raw.template as<T>() + args.first_column,
          .gamma = args.gamma.template as<const T>(),
          .rstd = args.rstd.template as<float>(),
          .partials = nullptr,
          .rows = x.rows(),
          .stride = x.cols(),
          .raw_stride = args.raw.cols(),
          .heads = static_cast<int>(args.heads),
          .dim = static_cast<int>(args.head_dim),
          .eps = 0,
          .rows_per_chunk = 0};
}

}  // namespace

void head_norm_forward(Queue& queue, const HeadNorm& args) {
  with_type(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    Args<T> a = args_of<T>(args, args.x);
    a.eps = args.eps;
    with_lanes(a, [&](auto pack, auto lanes, auto held) {
      launch(
          forward_kernel<T, decltype(pack)::value, decltype(lanes)::value, decltype(held)::value>,
          blocks_for(queue, a.rows, kWarps), dim3(kBlock), 0, queue.stream(), a);
    });
  });
}

void head_norm_backward(Queue& queue, const HeadNormBackward& args) {
  const int64_t dim = args.head_dim;
  const RowChunks chunks = kernel_scratch::head_norm_chunks(args.dx.rows());
  auto* partials =
      static_cast<float*>(queue.scratch(kernel_scratch::head_norm_backward(args.dx.rows(), dim)));
  with_type(args.dx.dtype, [&](auto type) {
    using T = decltype(type);
    Args<T> a = args_of<T>(args, args.dx);
    a.partials = partials;
    a.rows_per_chunk = chunks.rows;
    with_lanes(a, [&](auto pack, auto lanes, auto held) {
      constexpr int kLanes = decltype(lanes)::value;
      launch(backward_kernel<T, decltype(pack)::value, kLanes, decltype(held)::value>,
             dim3(static_cast<unsigned>(chunks.count)), dim3(kBlock),
             static_cast<size_t>(kBlock / kLanes * dim) * sizeof(float), queue.stream(), a);
    });
  });
  if (!args.dgamma) return;
  combine(queue, partials, chunks.count, dim, dim, args.dgamma.as<float>(), args.accumulate);
}

}  // namespace mtl::cuda
