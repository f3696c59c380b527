// SwiGLU and the exact form of GELU, and their gradients. (GELU's tanh form belongs to the matmul:
// matmul_kernels.cpp.)
#include "runtime/device/cpu/kernels/parts.h"
#include "runtime/device/cpu/kernels/vector.h"

namespace mtl::kernels::MTL_ISA {
namespace {

// Of a gate: s = 1 / (1 + e^-g), and silu(g) = g s, the same bits forward and backward.
struct Silu {
  F e, s, value;
};
MTL_INLINE Silu silu(F g) {
  const F e = exp(-g);
  const F s = 1.0f / (1.0f + e);
  return {e, s, g * s};
}

template <class T>
void swiglu_forward(const Swiglu& args) {
  const int64_t width = args.width;
  for (int64_t r = 0; r < args.rows; ++r) {
    const T* gate = static_cast<const T*>(args.x) + r * 2 * width;
    const T* up = gate + width;
    T* y = static_cast<T*>(args.y) + r * width;
    each(width, [&](int64_t i, auto lanes) MTL_LAMBDA {
      store(y + i, silu(load(gate + i, lanes)).value * load(up + i, lanes), lanes);
    });
  }
}

// silu'(g) = s + g s (1 - s), and 1 - s = e^-g s without a cancellation.
template <class T, bool kWeights>
void swiglu_backward_rows(const Swiglu& args) {
  const int64_t width = args.width;
  for (int64_t r = 0; r < args.rows; ++r) {
    const T* gate = static_cast<const T*>(args.x) + r * 2 * width;
    const T* up = gate + width;
    const T* dy = static_cast<const T*>(args.dy) + r * width;
    T* dgate = static_cast<T*>(args.dx) + r * 2 * width;
    T* dup = dgate + width;
    T* y = args.y ? static_cast<T*>(args.y) + r * width : nullptr;
    const float weight = kWeights ? args.weights[args.index[r]] : 1.0f;
    F dot = {};
    each(width, [&](int64_t i, auto lanes) MTL_LAMBDA {
      const F g = load(gate + i, lanes), u = load(up + i, lanes);
      F d = load(dy + i, lanes);
      const Silu of = silu(g);
      const F value = of.value * u;
      if (y) store(y + i, value, lanes);
      if (kWeights) {
        dot += value * d;
        d *= weight;
      }
      store(dgate + i, d * u * (of.s + of.value * (of.e * of.s)), lanes);
      store(dup + i, d * of.value, lanes);
    });
    if (kWeights) args.dweights[args.index[r]] = sum_lanes(dot);
  }
}
template <class T>
void swiglu_backward(const Swiglu& args) {
  if (args.index) {
    swiglu_backward_rows<T, true>(args);
  } else {
    swiglu_backward_rows<T, false>(args);
  }
}

// The integral of the normal distribution up to x, erfc(-x / sqrt(2)) / 2, and its density. Erfc to
// a relative 1.2e-7: W. Press et al., Numerical Recipes, 6.2 (one polynomial of 1 / (1 + z / 2) in
// the exponent). The GPU's kernels have the same. |x| is at most 20.
struct Normal {
  F integral, density;
};
MTL_INLINE Normal normal(F x) {
  const F z = 0.70710678f * (x < 0.0f ? -x : x);
  const F t = 1.0f / (1.0f + 0.5f * z);
  F p = 0.17087277f * t - 0.82215223f;
  p = p * t + 1.48851587f;
  p = p * t - 1.13520398f;
  p = p * t + 0.27886807f;
  p = p * t - 0.18628806f;
  p = p * t + 0.09678418f;
  p = p * t + 0.37409196f;
  p = p * t + 1.00002368f;
  p = p * t - 1.26551223f;
  const F bell = exp(-z * z);
  const F tail = 0.5f * t * bell * exp(p);
  return {x < 0.0f ? tail : 1.0f - tail, 0.39894228f * bell};
}
// Beyond it the integral is 0 or 1 to the last bit, and the square could overflow. A NaN stays.
MTL_INLINE F bounded(F x) {
  return min(splat(20.0f), max(splat(-20.0f), x));
}

template <class T>
void gelu_exact_forward(const void* x, void* y, int64_t n) {
  each(n, [&](int64_t i, auto lanes) MTL_LAMBDA {
    const F value = load(static_cast<const T*>(x) + i, lanes);
    store(static_cast<T*>(y) + i, value * normal(bounded(value)).integral, lanes);
  });
}

template <class T>
void gelu_exact_backward(const void* x, void* dy, void* y, int64_t n) {
  each(n, [&](int64_t i, auto lanes) MTL_LAMBDA {
    const F given = load(static_cast<const T*>(x) + i, lanes), value = bounded(given);
    T* const at = static_cast<T*>(dy) + i;
    const Normal at_x = normal(value);
    if (y) store(static_cast<T*>(y) + i, given * at_x.integral, lanes);
    store(at, load(at, lanes) * (at_x.integral + value * at_x.density), lanes);
  });
}

template <class T>
void add_typed(TypedKernels& table) {
  table.gelu_exact_forward = gelu_exact_forward<T>;
  table.gelu_exact_backward = gelu_exact_backward<T>;
  table.swiglu_forward = swiglu_forward<T>;
  table.swiglu_backward = swiglu_backward<T>;
}

}  // namespace

void add_activation_kernels(VectorKernels& table) {
  add_typed<float>(table.f32);
  add_typed<uint16_t>(table.bf16);
  add_typed<_Float16>(table.f16);
}

}  // namespace mtl::kernels::MTL_ISA
