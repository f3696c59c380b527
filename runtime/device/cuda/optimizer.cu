// AdamW, Adam, SGD, Lion, and what Muon does element by element: one pass and one launch for all
// pieces it is given. Bytes per parameter: adamw 28, sgd and lion 20, momentum 16 and descend 12,
// and 2 more with weights in f16 to write.
#include "runtime/device/cuda/cells.h"

namespace mtl::cuda {

namespace {

// As the CPU engine, which counts numbers below 2^-126 as zero here: moments without gradient would
// stay for ever in that range (0.9 times the smallest number is rounded back to it).
__device__ inline float without_tiny(float x) {
  return fabsf(x) < 1.17549435e-38f ? 0.0f : x;
}

// The masters, and where they are no weights themselves a copy of them.
template <typename T>
struct Masters {
  Masters() = default;
  Masters(const Tensor& master, const Tensor& copy)
      : whole(master.as<float>()), weights(copy.as<T>()) {}
  float* whole = nullptr;
  T* weights = nullptr;  // null: the masters are the weights

  bool are_aligned() const { return aligned({whole}) && aligned({weights}, 4 * sizeof(T)); }
  __device__ void move_to(const Cell& cell) {
    whole += weights != nullptr ? cell.state() : cell.weight();
    if (weights != nullptr) weights += cell.weight();
  }
  template <int N>
  __device__ Floats<N> read(int64_t i) const {
    return load<N>(whole + i);
  }
  template <int N>
  __device__ void write(int64_t i, const Floats<N>& p) const {
    store(whole + i, p);
    if (weights != nullptr) store(weights + i, p);
  }
};
// In halves (common/half.h has the same for the host): the weights, and what those lack.
template <>
struct Masters<Bf16> {
  Masters() = default;
  Masters(const Tensor& master, const Tensor& part)
      : rests(master.as<uint16_t>()), weights(part.as<uint16_t>()) {}
  uint16_t *rests = nullptr, *weights = nullptr;

  bool are_aligned() const { return aligned({rests, weights}, 4 * sizeof(uint16_t)); }
  __device__ void move_to(const Cell& cell) {
    rests += cell.state();
    weights += cell.weight();
  }
  template <int N>
  __device__ Floats<N> read(int64_t i) const {
    const auto upper = *reinterpret_cast<const Pack<uint16_t, N>*>(weights + i);
    const auto lower = *reinterpret_cast<const Pack<uint16_t, N>*>(rests + i);
    Floats<N> p;
    for (int k = 0; k < N; ++k) {
      const auto rest = static_cast<int32_t>(static_cast<int16_t>(lower.at[k]));
      p.at[k] = float_of((uint32_t{upper.at[k]} << 16) + static_cast<uint32_t>(rest));
    }
    return p;
  }
  template <int N>
  __device__ void write(int64_t i, const Floats<N>& p) const {
    Pack<uint16_t, N> upper, lower;
    for (int k = 0; k < N; ++k) {
      const uint32_t bits = word_of(p.at[k]);
      const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
      upper.at[k] = static_cast<uint16_t>((nan ? bits | 0x400000u : bits + 0x8000u) >> 16);
      lower.at[k] = static_cast<uint16_t>(nan ? 0u : bits);
    }
    if constexpr (N == 1) {
      weights[i] = upper.at[0];
      rests[i] = lower.at[0];
    } else {
      store_pack(weights + i, upper);
      store_pack(rests + i, lower);
    }
  }
};

template <typename T>
struct AdamWStep {
  Masters<T> master;
  float *exp_avg, *exp_avg_sq;
  const float* grad;
  const float* factor;  // of the gradients
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float rate, inverse_sqrt_correction2, eps;
  float keep, coupled_decay;  // of pieces that decay
  float grad_scale;           // *factor

  __device__ AdamWStep in(const Cell& cell) const {
    AdamWStep here = *this;
    here.master.move_to(cell);
    here.exp_avg += cell.state();
    here.exp_avg_sq += cell.second();
    here.grad += cell.begin;
    if (cell.piece.decays == 0) {
      here.keep = 1;
      here.coupled_decay = 0;
    }
    return here;
  }
  template <int N>
  __device__ void at(int64_t i) const {
    Floats<N> p = master.template read<N>(i);
    Floats<N> m = load<N>(exp_avg + i), v = load<N>(exp_avg_sq + i);
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
    master.write(i, p);
  }
};

template <typename T>
struct SgdStep {
  Masters<T> master;
  float* momentum_buffer;
  const float* grad;
  const float* factor;
  float lr, momentum;
  float weight_decay;  // of pieces that decay
  float grad_scale;    // *factor

  __device__ SgdStep in(const Cell& cell) const {
    SgdStep here = *this;
    here.master.move_to(cell);
    here.momentum_buffer += cell.state();
    here.grad += cell.begin;
    if (cell.piece.decays == 0) here.weight_decay = 0;
    return here;
  }
  template <int N>
  __device__ void at(int64_t i) const {
    Floats<N> p = master.template read<N>(i), buffer = load<N>(momentum_buffer + i);
    const Floats<N> gradient = load<N>(grad + i);
    for (int k = 0; k < N; ++k) {
      const float g = gradient.at[k] * grad_scale + p.at[k] * weight_decay;
      buffer.at[k] = without_tiny(buffer.at[k] * momentum + g);
      p.at[k] -= buffer.at[k] * lr;
    }
    store(momentum_buffer + i, buffer);
    master.write(i, p);
  }
};

template <typename T>
struct LionStep {
  Masters<T> master;
  float* exp_avg;
  const float* grad;
  const float* factor;
  float lr, beta1, beta2, keep;  // keep: of pieces that decay
  float grad_scale;              // *factor

  __device__ LionStep in(const Cell& cell) const {
    LionStep here = *this;
    here.master.move_to(cell);
    here.exp_avg += cell.state();
    here.grad += cell.begin;
    if (cell.piece.decays == 0) here.keep = 1;
    return here;
  }
  template <int N>
  __device__ void at(int64_t i) const {
    Floats<N> p = master.template read<N>(i), m = load<N>(exp_avg + i);
    const Floats<N> gradient = load<N>(grad + i);
    for (int k = 0; k < N; ++k) {
      const float g = gradient.at[k] * grad_scale;
      const float direction = without_tiny(m.at[k] * beta1 + g * (1 - beta1));
      const float up = direction > 0 ? lr : 0.0f, down = direction < 0 ? lr : 0.0f;
      p.at[k] = p.at[k] * keep - up + down;
      m.at[k] = without_tiny(m.at[k] * beta2 + g * (1 - beta2));
    }
    store(exp_avg + i, m);
    master.write(i, p);
  }
};

struct MomentumStep {
  float *buffer, *grad;
  const float* factor;
  float momentum, of_buffer, of_gradient;
  float grad_scale;  // *factor

  __device__ MomentumStep in(const Cell& cell) const {
    MomentumStep here = *this;
    here.buffer += cell.state();
    here.grad += cell.begin;
    return here;
  }
  template <int N>
  __device__ void at(int64_t i) const {
    Floats<N> sums = load<N>(buffer + i), gradient = load<N>(grad + i);
    for (int k = 0; k < N; ++k) {
      const float g = gradient.at[k] * grad_scale;
      sums.at[k] = without_tiny(sums.at[k] * momentum + g * (1 - momentum));
      gradient.at[k] = sums.at[k] * of_buffer + g * of_gradient;
    }
    store(buffer + i, sums);
    store(grad + i, gradient);
  }
};

template <typename T>
struct DescendStep {
  Masters<T> master;
  const float* grad;
  const float* factor;
  float lr, keep;    // keep: of pieces that decay
  float grad_scale;  // *factor

  __device__ DescendStep in(const Cell& cell) const {
    DescendStep here = *this;
    here.master.move_to(cell);
    here.grad += cell.begin;
    if (cell.piece.decays == 0) here.keep = 1;
    return here;
  }
  template <int N>
  __device__ void at(int64_t i) const {
    Floats<N> p = master.template read<N>(i);
    const Floats<N> step = load<N>(grad + i);
    for (int k = 0; k < N; ++k) p.at[k] = p.at[k] * keep - step.at[k] * lr;
    master.write(i, p);
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
    step.master = Masters<T>(args.master, args.weights);
    step.exp_avg = args.exp_avg.as<float>();
    step.exp_avg_sq = args.exp_avg_sq.as<float>();
    step.grad = args.grad.as<const float>();
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
    const bool packs =
        step.master.are_aligned() && aligned({step.exp_avg, step.exp_avg_sq, step.grad});
    with_pack<4>(packs,
                 [&](auto pack) { update_cells<decltype(pack)::value>(queue, args.pieces, step); });
  });
}

void sgd(Queue& queue, const Sgd& args) {
  with_type(args.weights.dtype, [&](auto type) {
    using T = decltype(type);
    SgdStep<T> step = {};
    step.master = Masters<T>(args.master, args.weights);
    step.momentum_buffer = args.momentum_buffer.as<float>();
    step.grad = args.grad.as<const float>();
    step.factor = args.factor.as<const float>();
    step.lr = args.lr;
    step.momentum = args.momentum;
    step.weight_decay = args.weight_decay;
    const bool packs = step.master.are_aligned() && aligned({step.momentum_buffer, step.grad});
    with_pack<4>(packs,
                 [&](auto pack) { update_cells<decltype(pack)::value>(queue, args.pieces, step); });
  });
}

void lion(Queue& queue, const Lion& args) {
  with_type(args.weights.dtype, [&](auto type) {
    using T = decltype(type);
    LionStep<T> step = {};
    step.master = Masters<T>(args.master, args.weights);
    step.exp_avg = args.exp_avg.as<float>();
    step.grad = args.grad.as<const float>();
    step.factor = args.factor.as<const float>();
    step.lr = args.lr;
    step.beta1 = args.beta1;
    step.beta2 = args.beta2;
    step.keep = 1 - args.lr * args.weight_decay;
    const bool packs = step.master.are_aligned() && aligned({step.exp_avg, step.grad});
    with_pack<4>(packs,
                 [&](auto pack) { update_cells<decltype(pack)::value>(queue, args.pieces, step); });
  });
}

void momentum(Queue& queue, const Momentum& args) {
  MomentumStep step = {};
  step.buffer = args.buffer.as<float>();
  step.grad = args.grad.as<float>();
  step.factor = args.factor.as<const float>();
  step.momentum = args.momentum;
  step.of_buffer = args.nesterov ? args.momentum : 1.0f;
  step.of_gradient = args.nesterov ? 1 - args.momentum : 0.0f;
  with_pack<4>(aligned({step.buffer, step.grad}),
               [&](auto pack) { update_cells<decltype(pack)::value>(queue, args.pieces, step); });
}

void descend(Queue& queue, const Descend& args) {
  with_type(args.weights.dtype, [&](auto type) {
    using T = decltype(type);
    DescendStep<T> step = {};
    step.master = Masters<T>(args.master, args.weights);
    step.grad = args.grad.as<const float>();
    step.factor = args.factor.as<const float>();
    step.lr = args.lr;
    step.keep = 1 - args.lr * args.weight_decay;
    const bool packs = step.master.are_aligned() && aligned({step.grad});
    with_pack<4>(packs,
                 [&](auto pack) { update_cells<decltype(pack)::value>(queue, args.pieces, step); });
  });
}

}  // namespace mtl::cuda
