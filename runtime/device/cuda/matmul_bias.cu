// The bias of a matrix product where cuBLASLt's epilogue does not take it (matmul_plan.h): onto an
// f32 sum, in place or on its way into a 16-bit result, so that the sum is rounded once.
#include <algorithm>

#include "runtime/device/cuda/ops.h"

namespace mtl::cuda {

namespace {

constexpr unsigned kThreads = 256;

// kN elements of one row per thread; with kN > 1 every row begins aligned.
template <typename Bias, typename To, int kN>
__global__ void __launch_bounds__(kThreads)
    add_bias_kernel(const float* from, const Bias* bias, To* to, int64_t count, int64_t cols,
                    bool accumulate) {
  const int64_t stride = int64_t{gridDim.x} * kThreads * kN;
  for (int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kN; i < count; i += stride) {
    const int64_t column = i % cols;
    Pack<float, kN> sum = *reinterpret_cast<const Pack<float, kN>*>(from + i);
    const Pack<Bias, kN> addend = *reinterpret_cast<const Pack<Bias, kN>*>(bias + column);
    Pack<To, kN> result;
    if (accumulate) result = *reinterpret_cast<const Pack<To, kN>*>(to + i);
    for (int j = 0; j < kN; ++j) {
      float x = sum.at[j] + to_float(addend.at[j]);
      if (accumulate) x += to_float(result.at[j]);
      result.at[j] = from_float<To>(x);
    }
    *reinterpret_cast<Pack<To, kN>*>(to + i) = result;
  }
}

template <int kN>
bool packs_of(const Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.data) % static_cast<size_t>(kN * bytes_of(x.dtype)) == 0;
}

template <typename Bias, typename To>
void start(Queue& queue, Tensor from, Tensor bias, Tensor to, bool accumulate) {
  constexpr int kN = 4;  // 16 bytes of f32
  const bool packed =
      to.cols() % kN == 0 && packs_of<kN>(from) && packs_of<kN>(bias) && packs_of<kN>(to);
  const int64_t count = to.numel();
  const int64_t per_block = int64_t{kThreads} * (packed ? kN : 1);
  const int64_t blocks =
      std::min((count + per_block - 1) / per_block, int64_t{8} * queue.multiprocessors());
  launch(packed ? add_bias_kernel<Bias, To, kN> : add_bias_kernel<Bias, To, 1>,
         dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, queue.stream(),
         from.as<const float>(), bias.as<const Bias>(), to.as<To>(), count, to.cols(), accumulate);
}

template <typename Bias>
void start_to(Queue& queue, Tensor from, Tensor bias, Tensor to, bool accumulate) {
  switch (to.dtype) {
    case DType::bf16:
      return start<Bias, Bf16>(queue, from, bias, to, accumulate);
    case DType::f16:
      return start<Bias, Half>(queue, from, bias, to, accumulate);
    default:
      return start<Bias, float>(queue, from, bias, to, accumulate);
  }
}

}  // namespace

void add_bias(Queue& queue, Tensor from, Tensor bias, Tensor to, bool accumulate) {
  switch (bias.dtype) {
    case DType::bf16:
      return start_to<Bf16>(queue, from, bias, to, accumulate);
    case DType::f16:
      return start_to<Half>(queue, from, bias, to, accumulate);
    default:
      return start_to<float>(queue, from, bias, to, accumulate);
  }
}

}  // namespace mtl::cuda
