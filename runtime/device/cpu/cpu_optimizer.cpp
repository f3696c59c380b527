// The optimizer step, and the sums for the loss and the gradient norm.
#include <cassert>
#include <cmath>

#include "runtime/device/cpu/cpu_device.h"

namespace mtl {

namespace {

// The copy of the masters for the matmuls. (Where it is absent its type is f32: so is its table.)
[[maybe_unused]] bool are_weights(const Tensor& x, int64_t n) {
  return (x.dtype == DType::bf16 || x.dtype == DType::f16) && x.numel() == n;
}

void* weights_at(const Tensor& weights, int64_t i) {
  return weights ? weights.as<char>() + i * bytes_of(weights.dtype) : nullptr;
}

}  // namespace

void CpuDevice::sum(Tensor x, Tensor out, bool accumulate) {
  assert(x.dtype == DType::f32 && out.dtype == DType::f64);
  // One value per token: too few to be worth threads.
  double total = accumulate ? *out.as<double>() : 0.0;
  const float* values = x.as<float>();
  for (int64_t i = 0; i < x.numel(); ++i) total += static_cast<double>(values[i]);
  *out.as<double>() = total;
}

void CpuDevice::sum_squares(Tensor x, Tensor partials) {
  assert(x.dtype == DType::f32 && partials.dtype == DType::f64);
  assert(partials.numel() == (x.numel() + kNormChunk - 1) / kNormChunk);
  split(x.numel(), kNormChunk, [&](int64_t begin, int64_t end) {
    kernels_.sum_squares(x.as<float>() + begin, end - begin,
                         partials.as<double>() + begin / kNormChunk);
  });
}

void CpuDevice::adamw(const AdamW& args) {
  const int64_t n = args.master.numel();
  assert(args.master.dtype == DType::f32 && args.exp_avg.dtype == DType::f32 &&
         args.exp_avg_sq.dtype == DType::f32 && args.grad.dtype == DType::f32);
  assert(args.exp_avg.numel() == n && args.exp_avg_sq.numel() == n && args.grad.numel() == n);
  assert(!args.weights || are_weights(args.weights, n));
  assert(args.step >= 1);
  const double beta1 = static_cast<double>(args.beta1), beta2 = static_cast<double>(args.beta2);
  const double lr = static_cast<double>(args.lr);
  const double step = static_cast<double>(args.step);
  const double decay = args.decoupled ? lr * static_cast<double>(args.weight_decay) : 0.0;
  kernels::AdamWRange range = {};
  range.beta1 = args.beta1;
  range.one_minus_beta1 = static_cast<float>(1 - beta1);
  range.beta2 = args.beta2;
  range.one_minus_beta2 = static_cast<float>(1 - beta2);
  range.rate = static_cast<float>(lr / (1 - std::pow(beta1, step)));
  range.inverse_sqrt_correction2 = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, step)));
  range.eps = args.eps;
  range.keep = static_cast<float>(1 - decay);
  range.coupled_decay = args.decoupled ? 0.0f : args.weight_decay;
  range.grad_scale = args.grad_scale;
  const auto update = typed(args.weights.dtype).adamw;
  split(n, kNormChunk, [&](int64_t begin, int64_t end) {
    kernels::AdamWRange share = range;
    share.master = args.master.as<float>() + begin;
    share.exp_avg = args.exp_avg.as<float>() + begin;
    share.exp_avg_sq = args.exp_avg_sq.as<float>() + begin;
    share.grad = args.grad.as<float>() + begin;
    share.weights = weights_at(args.weights, begin);
    share.n = end - begin;
    update(share);
  });
}

void CpuDevice::sgd(const Sgd& args) {
  const int64_t n = args.master.numel();
  assert(args.master.dtype == DType::f32 && args.momentum_buffer.dtype == DType::f32 &&
         args.grad.dtype == DType::f32);
  assert(args.momentum_buffer.numel() == n && args.grad.numel() == n);
  assert(!args.weights || are_weights(args.weights, n));
  const auto update = typed(args.weights.dtype).sgd;
  split(n, kNormChunk, [&](int64_t begin, int64_t end) {
    update({.master = args.master.as<float>() + begin,
            .momentum_buffer = args.momentum_buffer.as<float>() + begin,
            .grad = args.grad.as<float>() + begin,
            .weights = weights_at(args.weights, begin),
            .n = end - begin,
            .lr = args.lr,
            .momentum = args.momentum,
            .weight_decay = args.weight_decay,
            .grad_scale = args.grad_scale});
  });
}

}  // namespace mtl
