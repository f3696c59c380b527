// AdamW, Adam and SGD: one pass and one launch for all pieces it is given. Bytes per parameter:
// adamw 28 and sgd 20, and 2 more with 16-bit weights to write.
#include "runtime/device/cuda/cells.h"

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
  T* weights;           // or null
  const float* factor;  // of the gradients
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float rate, inverse_sqrt_correction2, eps;
  float keep, coupled_decay;  // of pieces that decay
  float grad_scale;           // *factor

  __device__ AdamWStep in(const Cell& cell) const {
    AdamWStep here = *this;
    here.master += weights != nullptr ? cell.state() : cell.weight();
    here.exp_avg += cell.state();
    here.exp_avg_sq += cell.state();
    here.grad += cell.begin;
    if (weights != nullptr) here.weights += cell.weight();
    if (cell.piece.decays == 0) {
      here.keep = 1;
      here.coupled_decay = 0;
    }
    return here;
  }
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
  const float* factor;
  float lr, momentum;
  float weight_decay;  // of pieces that decay
  float grad_scale;    // *factor

  __device__ SgdStep in(const Cell& cell) const {
    SgdStep here = *this;
    here.master += weights != nullptr ? cell.state() : cell.weight();
    here.momentum_buffer += cell.state();
    here.grad += cell.begin;
    if (weights != nullptr) here.weights += cell.weight();
    if (cell.piece.decays == 0) here.weight_decay = 0;
    return here;
  }
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
    AdamWStep<T> step = {};
    step.master = args.master.as<float>();
    step.exp_avg = args.exp_avg.as<float>();
    step.exp_avg_sq = args.exp_avg_sq.as<float>();
    step.grad = args.grad.as<const float>();
    step.weights = args.weights.as<T>();
    step.factor = args.factor.as<const float>();
    step.beta1 = args.beta1;
    step.one_minus_beta1 = static_cast<float>(1 - beta1);
    step.beta2 = args.beta2;
    step.one_minus_beta2 = static_cast<float>(1 - beta2);
    step.rate = static_cast<float>(lr / (1 - std::pow(beta1, steps)));
    step.inverse_sqrt_correction2 = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, steps)));
    step.eps = args.eps;
    step.keep = static_cast<float>(1 - decay);
    step.coupled_decay = args.decoupled ? 0.0f : args.weight_decay;
    const bool packs = aligned({step.master, step.exp_avg, step.exp_avg_sq, step.grad}) &&
                       aligned({step.weights}, 4 * sizeof(T));
    with_pack<4>(packs,
                 [&](auto pack) { update_cells<decltype(pack)::value>(queue, args.pieces, step); });
  });
}

void sgd(Queue& queue, const Sgd& args) {
  with_type(args.weights.dtype, [&](auto type) {
    using T = decltype(type);
    SgdStep<T> step = {};
    step.master = args.master.as<float>();
    step.momentum_buffer = args.momentum_buffer.as<float>();
    step.grad = args.grad.as<const float>();
    step.weights = args.weights.as<T>();
    step.factor = args.factor.as<const float>();
    step.lr = args.lr;
    step.momentum = args.momentum;
    step.weight_decay = args.weight_decay;
    const bool packs = aligned({step.master, step.momentum_buffer, step.grad}) &&
                       aligned({step.weights}, 4 * sizeof(T));
    with_pack<4>(packs,
                 [&](auto pack) { update_cells<decltype(pack)::value>(queue, args.pieces, step); });
  });
}

}  // namespace mtl::cuda
