// SwiGLU, its siblings and the exact form of GELU, and their gradients. (GELU's tanh form belongs
// to the matmul: matmul_kernels.cpp.)
#include "runtime/device/cpu/kernels/parts.h"
#include "runtime/device/cpu/kernels/vector.h"

namespace mtl::kernels::MTL_ISA {
namespace {

// What a gate makes of g, the same bits forward and backward, and its derivative.
struct Gate {
  F value, slope;
};
// silu(g) = g s, s = 1 / (1 + e^-g); silu'(g) = s + g s (1 - s), and 1 - s = e^-g s without a
// cancellation.
MTL_INLINE Gate silu(F g) {
  const F e = exp(-g);
  const F s = 1.0f / (1.0f + e);
  const F value = g * s;
  return {value, s + value * (e * s)};
}
// gelu_tanh(g) = g sigmoid(2u), u = sqrt(2/pi) (g + 0.044715 g^3), as the GPU's kernels have it.
// Beyond 20 in magnitude the sigmoid is 0 or 1 to the last bit, and the square could overflow. A
// NaN stays.
MTL_INLINE Gate gelu(F g) {
  constexpr float kLinear = 1.5957691216f;    // 2 sqrt(2/pi)
  constexpr float kCubic = 0.0713548162726f;  // 2 sqrt(2/pi) 0.044715
  const F x = min(splat(20.0f), max(splat(-20.0f), g));
  const F square = x * x;
  const F e = exp(-(x * (kLinear + kCubic * square)));
  const F s = 1.0f / (1.0f + e);
  return {g * s, s + x * (kLinear + 3.0f * kCubic * square) * (s * (e * s))};
}
// With s = sigmoid(c g): g s, and its derivative s + c g s (1 - s). Of large g the product without
// c is 0, where that of c and g may be infinite.
MTL_INLINE Gate steep_silu(F g, float steep) {
  const F e = exp(-(steep * g));
  const F s = 1.0f / (1.0f + e);
  const F value = g * s;
  return {value, s + steep * (value * (e * s))};
}
template <bool kGelu, bool kPlain>
MTL_INLINE Gate gate_of(F g, const UnitTerms& unit) {
  return kGelu ? gelu(g) : kPlain ? silu(g) : steep_silu(g, unit.steep);
}

// A gate and its partner as the product takes them: a NaN is beyond no bound and stays.
struct GatedPair {
  F gate, up;
};
template <bool kPlain>
MTL_INLINE GatedPair pair_of(F gate, F up, const UnitTerms& unit) {
  if (kPlain) return {gate, up};
  const F bound = splat(unit.bound);
  return {min(bound, gate), min(bound, max(-bound, up)) + unit.offset};
}

template <class T, bool kGelu, bool kPlain>
void swiglu_forward_rows(const Swiglu& args) {
  const int64_t width = args.width;
  const UnitTerms unit = args.unit;
  for (int64_t r = 0; r < args.rows; ++r) {
    const T* gate = static_cast<const T*>(args.x) + r * 2 * width;
    const T* up = gate + width;
    T* y = static_cast<T*>(args.y) + r * width;
    each(width, [&](int64_t i, auto lanes) MTL_LAMBDA {
      const GatedPair pair = pair_of<kPlain>(load(gate + i, lanes), load(up + i, lanes), unit);
      store(y + i, gate_of<kGelu, kPlain>(pair.gate, unit).value * pair.up, lanes);
    });
  }
}

// Units that are not plain have one loop for rows with weights and without, whose weight is 1.
template <class T, bool kGelu, bool kPlain, bool kWeights>
void swiglu_backward_rows(const Swiglu& args) {
  const int64_t width = args.width;
  const UnitTerms unit = args.unit;
  const bool weigh = kWeights && (kPlain || args.index);
  for (int64_t r = 0; r < args.rows; ++r) {
    const T* gate = static_cast<const T*>(args.x) + r * 2 * width;
    const T* up = gate + width;
    const T* dy = static_cast<const T*>(args.dy) + r * width;
    T* dgate = static_cast<T*>(args.dx) + r * 2 * width;
    T* dup = dgate + width;
    T* y = args.y ? static_cast<T*>(args.y) + r * width : nullptr;
    const float weight = weigh ? args.weights[args.index[r]] : 1.0f;
    F dot = {};
    each(width, [&](int64_t i, auto lanes) MTL_LAMBDA {
      const F g = load(gate + i, lanes), u = load(up + i, lanes);
      F d = load(dy + i, lanes);
      const GatedPair pair = pair_of<kPlain>(g, u, unit);
      const Gate of = gate_of<kGelu, kPlain>(pair.gate, unit);
      const F value = of.value * pair.up;
      if (y) store(y + i, value, lanes);
      if (kWeights) {
        dot += value * d;
        d *= weight;
      }
      F to_gate = d * pair.up * of.slope, to_up = d * of.value;
      if (!kPlain) {
        // What was clamped has none.
        to_gate = g > unit.bound ? F{} : to_gate;
        to_up = u > unit.bound ? F{} : u < -unit.bound ? F{} : to_up;
      }
      store(dgate + i, to_gate, lanes);
      store(dup + i, to_up, lanes);
    });
    if (weigh) args.dweights[args.index[r]] = sum_lanes(dot);
  }
}

template <class T, bool kGelu>
void forward_of_gate(const Swiglu& args) {
  if (args.unit.plain) {
    swiglu_forward_rows<T, kGelu, true>(args);
  } else {
    swiglu_forward_rows<T, kGelu, false>(args);
  }
}
template <class T>
void swiglu_forward(const Swiglu& args) {
  if (args.unit.gelu) {
    forward_of_gate<T, true>(args);
  } else {
    forward_of_gate<T, false>(args);
  }
}

template <class T, bool kGelu>
void backward_of_gate(const Swiglu& args) {
  if (!args.unit.plain) {
    swiglu_backward_rows<T, kGelu, false, true>(args);
  } else if (args.index) {
    swiglu_backward_rows<T, kGelu, true, true>(args);
  } else {
    swiglu_backward_rows<T, kGelu, true, false>(args);
  }
}
template <class T>
void swiglu_backward(const Swiglu& args) {
  if (args.unit.gelu) {
    backward_of_gate<T, true>(args);
  } else {
    backward_of_gate<T, false>(args);
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
