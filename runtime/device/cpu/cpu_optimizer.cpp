// The optimizer step, and the sums for the loss and the gradient norm.
#include <cassert>
#include <cmath>

#include "runtime/device/cpu/cpu_device.h"

namespace mtl {

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
  assert(!args.weights || (args.weights.dtype == DType::bf16 && args.weights.numel() == n));
  assert(args.step >= 1);
  const double beta1 = static_cast<double>(args.beta1), beta2 = static_cast<double>(args.beta2);
  const double lr = static_cast<double>(args.lr);
  const double step = static_cast<double>(args.step);
  const double decay = lr * static_cast<double>(args.weight_decay);
  kernels::AdamWRange range = {};
  range.beta1 = args.beta1;
  range.one_minus_beta1 = static_cast<float>(1 - beta1);
  range.beta2 = args.beta2;
  range.one_minus_beta2 = static_cast<float>(1 - beta2);
  range.rate = static_cast<float>(lr / (1 - std::pow(beta1, step)));
  range.inverse_sqrt_correction2 = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, step)));
  range.eps = args.eps;
  range.keep = static_cast<float>(1 - decay);
  range.grad_scale = args.grad_scale;
  split(n, kNormChunk, [&](int64_t begin, int64_t end) {
    kernels::AdamWRange share = range;
    share.master = args.master.as<float>() + begin;
    share.exp_avg = args.exp_avg.as<float>() + begin;
    share.exp_avg_sq = args.exp_avg_sq.as<float>() + begin;
    share.grad = args.grad.as<float>() + begin;
    share.weights = args.weights ? args.weights.as<uint16_t>() + begin : nullptr;
    share.n = end - begin;
    kernels_.adamw(share);
  });
}

}  // namespace mtl
