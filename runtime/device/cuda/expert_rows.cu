// Mixture of experts: the way of the rows to the experts and back, and the block that all tokens go
// through. Bytes per element of a row, with s the size of the type: gather_rows 2 s, combine_rows
// (k + 1) s, add_row_products s, add_shared 3 s, add_shared_backward 4 s.

#include "runtime/device/cuda/expert_scores.h"

namespace mtl::cuda {

namespace {

// Rows of `width` elements, a warp each.
template <typename T>
struct Gather {
  const T* from;
  const int32_t* index;
  const float* weights;
  T* to;
  int64_t rows, width, divide;
};

template <typename T, int N>
__global__ void __launch_bounds__(kBlock) gather_kernel(Gather<T> a) {
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; row < a.rows;
       row += warps) {
    const int64_t index = a.index[row];
    const float weight = a.weights != nullptr ? a.weights[index] : 1.0f;
    const T* from = a.from + index / a.divide * a.width;
    T* to = a.to + row * a.width;
    MTL_UNROLL(2)
    for (int64_t i = threadIdx.x % kWarp * N; i < a.width; i += kWarp * N) {
      Floats<N> x = load<N>(from + i);
      for (int k = 0; k < N; ++k) x.at[k] *= weight;
      store(to + i, x);
    }
  }
}

template <typename T>
struct Combine {
  const T* from;
  const int32_t* index;
  const float* weights;
  T* to;
  int64_t rows, width;
  int k;
};

template <typename T, int N>
__global__ void __launch_bounds__(kBlock) combine_kernel(Combine<T> a) {
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; row < a.rows;
       row += warps) {
    for (int64_t i = threadIdx.x % kWarp * N; i < a.width; i += kWarp * N) {
      Floats<N> sum;
      for (int j = 0; j < a.k; ++j) {
        const int64_t at = row * a.k + j;
        const float weight = a.weights != nullptr ? a.weights[at] : 1.0f;
        const Floats<N> x = load<N>(a.from + a.index[at] * a.width + i);
        for (int k = 0; k < N; ++k) sum.at[k] += weight * x.at[k];
      }
      store(a.to + row * a.width + i, sum);
    }
  }
}

template <typename T>
struct RowProducts {
  const T *from, *vector;
  const int32_t* index;
  float* sums;
  int64_t rows, width;
};

// All rows read the same vector, which stays in the caches.
template <typename T, int N>
__global__ void __launch_bounds__(kBlock) row_products_kernel(RowProducts<T> a) {
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; row < a.rows;
       row += warps) {
    const T* from = a.from + row * a.width;
    float sum = 0;
    MTL_UNROLL(2)
    for (int64_t i = threadIdx.x % kWarp * N; i < a.width; i += kWarp * N) {
      const Floats<N> x = load<N>(from + i), v = load<N>(a.vector + i);
      for (int k = 0; k < N; ++k) sum = fmaf(x.at[k], v.at[k], sum);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % kWarp == 0) a.sums[a.index[row]] += sum;
  }
}

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

// A warp per row, in packs where addresses and width let it.
template <typename T, typename Arguments, typename KernelOf>
void launch_rows(Queue& queue, std::initializer_list<const void*> pointers, const Arguments& args,
                 KernelOf kernel_of) {
  const bool packs = aligned(pointers) && args.width % kPackOf<T> == 0;
  with_pack<kPackOf<T>>(packs, [&](auto pack) {
    launch(kernel_of(pack), blocks_for(queue, args.rows, kWarps), dim3(kBlock), 0, queue.stream(),
           args);
  });
}

}  // namespace

void gather_rows(Queue& queue, const GatherRows& args) {
  with_type(args.from.dtype, [&](auto type) {
    using T = decltype(type);
    const Gather<T> gather = {args.from.as<const T>(),
                              args.index.as<const int32_t>(),
                              args.weights.as<const float>(),
                              args.to.as<T>(),
                              args.index.numel(),
                              args.from.cols(),
                              args.divide};
    launch_rows<T>(queue, {gather.from, gather.to}, gather,
                   [](auto pack) { return gather_kernel<T, decltype(pack)::value>; });
  });
}

void combine_rows(Queue& queue, const CombineRows& args) {
  with_type(args.from.dtype, [&](auto type) {
    using T = decltype(type);
    const Combine<T> combine = {args.from.as<const T>(),
                                args.rows.as<const int32_t>(),
                                args.weights.as<const float>(),
                                args.to.as<T>(),
                                args.to.rows(),
                                args.to.cols(),
                                static_cast<int>(args.rows.cols())};
    launch_rows<T>(queue, {combine.from, combine.to}, combine,
                   [](auto pack) { return combine_kernel<T, decltype(pack)::value>; });
  });
}

void add_row_products(Queue& queue, const AddRowProducts& args) {
  with_type(args.rows.dtype, [&](auto type) {
    using T = decltype(type);
    const RowProducts<T> products = {
        args.rows.as<const T>(), args.vector.as<const T>(), args.index.as<const int32_t>(),
        args.sums.as<float>(),   args.index.numel(),        args.vector.numel()};
    launch_rows<T>(queue, {products.from, products.vector}, products,
                   [](auto pack) { return row_products_kernel<T, decltype(pack)::value>; });
  });
}

void add_shared(Queue& queue, const AddShared& args) {
  with_type(args.from.dtype, [&](auto type) {
    using T = decltype(type);
    const Shared<T> shared = {args.from.as<const T>(), args.gate.as<const float>(), args.to.as<T>(),
                              args.from.rows(), args.from.cols()};
    launch_rows<T>(queue, {shared.from, shared.to}, shared,
                   [](auto pack) { return add_shared_kernel<T, decltype(pack)::value>; });
  });
}

void add_shared_backward(Queue& queue, const AddSharedBackward& args) {
  with_type(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const SharedBackward<T> shared = {
        args.x.as<T>(),     args.dy.as<T>(), args.gate.as<const float>(),
        args.dgate.as<T>(), args.x.rows(),   args.x.cols()};
    launch_rows<T>(queue, {shared.x, shared.dy}, shared,
                   [](auto pack) { return add_shared_backward_kernel<T, decltype(pack)::value>; });
  });
}

}  // namespace mtl::cuda
