// AdamW, Adam and SGD: one pass. Bytes per parameter: adamw 28 and sgd 20, and 2 more with 16-bit
// weights to write. The engine updates parameter by parameter (runtime/engine/optimizer.cpp: decay
// is a parameter's own), in tensors as large as the shard's part of each, so a step is as many
// launches as the stage has parameters.
#include "runtime/device/cuda/kernels.h"

namespace mtl::cuda {

namespace {

// As the CPU engine, which counts numbers below 2^-126 as zero here: moments without gradient would
// stay for ever in that range (0.9 times the smallest number is rounded back to it).
__device__ inline float without_tiny(float x) {
  return fabsf(x) < 1.17549435e-38f ? 0.0f : x;
}

template <typename T>
struct AdamWStep {
  float *master, *exp_avg, *exp_avg_sq;
  const float* grad;
  T* weights;  // or null
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float rate, inverse_sqrt_correction2, eps, keep, coupled_decay, grad_scale;

  template <int N>
  __device__ void at(int64_t i) const {
    Floats<N> p = load<N>(master + i), m = load<N>(exp_avg + i), v = load<N>(exp_avg_sq + i);
    const Floats<N> gradient = load<N>(grad + i);
    for (int k = 0; k < N; ++k) {
      const float g = gradient.at[k] * grad_scale + p.at[k] * coupled_decay;
      m.at[k] = without_tiny(m.at[k] * beta1 + g * one_minus_beta1);
      v.at[k] = without_tiny(v.at[k] * beta2 + g * g * one_minus_beta2);
      const float step = m.at[k] / (sqrtf(v.at[k]) * inverse_sqrt_correction2 + eps) * rate;
      p.at[k] = p.at[k] * keep - step;
    }
    store(exp_avg + i, m);
    store(exp_avg_sq + i, v);
    store(master + i, p);
    if (weights != nullptr) store(weights + i, p);
  }
};

template <typename T>
struct SgdStep {
  float *master, *momentum_buffer;
  const float* grad;
  T* weights;  // or null
  float lr, momentum, weight_decay, grad_scale;

  template <int N>
  __device__ void at(int64_t i) const {
    Floats<N> p = load<N>(master + i), buffer = load<N>(momentum_buffer + i);
    const Floats<N> gradient = load<N>(grad + i);
    for (int k = 0; k < N; ++k) {
      const float g = gradient.at[k] * grad_scale + p.at[k] * weight_decay;
      buffer.at[k] = without_tiny(buffer.at[k] * momentum + g);
      p.at[k] -= buffer.at[k] * lr;
    }
    store(momentum_buffer + i, buffer);
    store(master + i, p);
    if (weights != nullptr) store(weights + i, p);
  }
};

}  // namespace

void adamw(Queue& queue, const AdamW& args) {
  const double beta1 = static_cast<double>(args.beta1), beta2 = static_cast<double>(args.beta2);
  const double lr = static_cast<double>(args.lr), steps = static_cast<double>(args.step);
  const double decay = args.decoupled ? lr * static_cast<double>(args.weight_decay) : 0.0;
  // Without weights the type is f32: none of that is written.
  with_type(args.weights.dtype, [&](auto type) {
    using T = decltype(type);
    AdamWStep<T> step;
    step.master = args.master.as<float>();
    step.exp_avg = args.exp_avg.as<float>();
    step.exp_avg_sq = args.exp_avg_sq.as<float>();
    step.grad = args.grad.as<const float>();
    step.weights = args.weights.as<T>();
    step.beta1 = args.beta1;
    step.one_minus_beta1 = static_cast<float>(1 - beta1);
    step.beta2 = args.beta2;
    step.one_minus_beta2 = static_cast<float>(1 - beta2);
    step.rate = static_cast<float>(lr / (1 - std::pow(beta1, steps)));
    step.inverse_sqrt_correction2 = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, steps)));
    step.eps = args.eps;
    step.keep = static_cast<float>(1 - decay);
    step.coupled_decay = args.decoupled ? 0.0f : args.weight_decay;
    step.grad_scale = args.grad_scale;
    const bool packs = aligned({step.master, step.exp_avg, step.exp_avg_sq, step.grad}) &&
                       aligned({step.weights}, 4 * sizeof(T));
    with_pack<4>(packs,
                 [&](auto pack) { each<decltype(pack)::value>(queue, args.master.numel(), step); });
  });
}

void sgd(Queue& queue, const Sgd& args) {
  with_type(args.weights.dtype, [&](auto type) {
    using T = decltype(type);
    const SgdStep<T> step = {args.master.as<float>(),
                             args.momentum_buffer.as<float>(),
                             args.grad.as<const float>(),
                             args.weights.as<T>(),
                             args.lr,
                             args.momentum,
                             args.weight_decay,
                             args.grad_scale};
    const bool packs = aligned({step.master, step.momentum_buffer, step.grad}) &&
                       aligned({step.weights}, 4 * sizeof(T));
    with_pack<4>(packs,
                 [&](auto pack) { each<decltype(pack)::value>(queue, args.master.numel(), step); });
  });
}

}  // namespace mtl::cuda
