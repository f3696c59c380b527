// GELU alone, SwiGLU and its siblings: one pass. Bytes per element of the output, with s the size
// of the type: gelu_forward 2 s, gelu_backward 3 s, swiglu_forward 3 s, swiglu_backward (per
// element of dy) 5 s; backward that writes y too one s more.
#include "runtime/device/cuda/activation.h"
#include "runtime/device/cuda/amax.h"

namespace mtl::cuda {

namespace {

struct TanhForm {
  __device__ static float value(float x) { return gelu(x); }
  __device__ static float slope(float x) { return gelu_derivative(x); }
};
struct ExactForm {
  __device__ static float value(float x) { return gelu_exact(x); }
  __device__ static float slope(float x) { return gelu_exact_derivative(x); }
};

template <typename T, typename Form>
struct Gelu {
  const T* x;
  T* y;
  template <int N>
  __device__ void at(int64_t i) const {
    Floats<N> values = load<N>(x + i);
    for (int k = 0; k < N; ++k) values.at[k] = Form::value(values.at[k]);
    store(y + i, values);
  }
};

template <typename T, typename Form, bool kAgain>
struct GeluBackward {
  T* dy;
  const T* aux;
  T* y;  // kAgain
  template <int N>
  __device__ void at(int64_t i) const {
    const Floats<N> x = load<N>(aux + i);
    Floats<N> d = load<N>(dy + i);
    if (kAgain) {
      Floats<N> values;
      for (int k = 0; k < N; ++k) values.at[k] = Form::value(x.at[k]);
      store(y + i, values);
    }
    for (int k = 0; k < N; ++k) d.at[k] *= Form::slope(x.at[k]);
    store(dy + i, d);
  }
};

// GatedUnit as kernels take it. Plain ones are SwiGLU and GeGLU, whose kernels do not look at the
// rest.
struct UnitTerms {
  explicit UnitTerms(const GatedUnit& unit)
      : gelu(unit.gate == GateForm::gelu_tanh),
        plain(unit.gate != GateForm::quick_gelu && unit.offset == 0 && unit.clamp == 0),
        steep(unit.gate == GateForm::quick_gelu ? kQuickGelu : 1.0f),
        offset(unit.offset),
        bound(unit.clamp > 0 ? unit.clamp : INFINITY) {}
  bool gelu, plain;
  float steep;  // the sigmoid's argument is so many times the gate
  float offset, bound;
};

// Rows of width f in y and dy, of 2 f in x and dx. A block's warps take a row each, so that nobody
// divides an element's index by the width.
template <typename T>
struct GatedRows {
  const T* x;
  T* y;  // backward: may be null
  int64_t rows, width;
  uint32_t* amax;
  UnitTerms unit;
  // Backward only.
  const T* dy = nullptr;
  T* dx = nullptr;
  const int32_t* index = nullptr;  // with weights
  const float* weights = nullptr;
  float* dweights = nullptr;
};

// What a gate makes of g, the same bits forward and backward, and its derivative.
struct Gate {
  float value, slope;
};
// With s = sigmoid(c g): the derivative of g s is s + c g s (1 - s). Of large g the product without
// c is 0, where that of c and g may be infinite.
template <bool kGelu, bool kPlain>
__device__ Gate gate_of(float g, const UnitTerms& unit) {
  if constexpr (kGelu) {
    return {gelu(g), gelu_derivative(g)};
  } else {
    const Sigmoid s = sigmoid(kPlain ? g : unit.steep * g);
    const float value = g * s.value;
    return {value, kPlain ? s.value + value * s.rest : s.value + unit.steep * (value * s.rest)};
  }
}

// A gate and its partner as the product takes them, and whether they have a gradient. A NaN is
// beyond no bound and stays.
struct GatedPair {
  float gate, up;
  bool gate_free = true, up_free = true;
};
template <bool kPlain>
__device__ GatedPair pair_of(float gate, float up, const UnitTerms& unit) {
  if constexpr (kPlain) {
    return {gate, up};
  } else {
    const float bound = unit.bound;
    const bool gate_free = !(gate > bound), up_free = !(fabsf(up) > bound);
    const float within = up_free ? up : (up > 0 ? bound : -bound);
    return {gate_free ? gate : bound, within + unit.offset, gate_free, up_free};
  }
}

template <typename T, int N, bool kGelu, bool kPlain>
__global__ void __launch_bounds__(kBlock) swiglu_forward_kernel(GatedRows<T> a) {
  Amax<T> amax(a.amax);
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; row < a.rows;
       row += warps) {
    const T* gate = a.x + row * 2 * a.width;
    T* y = a.y + row * a.width;
    MTL_UNROLL(2)
    for (int64_t i = threadIdx.x % kWarp * N; i < a.width; i += kWarp * N) {
      const Floats<N> g = load<N>(gate + i);
      Floats<N> u = load<N>(gate + a.width + i);
      for (int k = 0; k < N; ++k) {
        const GatedPair pair = pair_of<kPlain>(g.at[k], u.at[k], a.unit);
        u.at[k] = pair.up * gate_of<kGelu, kPlain>(pair.gate, a.unit).value;
      }
      store(y + i, u);
      amax.take(u);
    }
  }
  amax.template finish<kBlock>();
}

// y is the product that forward makes. Units that are not plain have one kernel for rows with
// weights and without, whose weight is 1.
template <typename T, int N, bool kGelu, bool kPlain, bool kWeights>
__global__ void __launch_bounds__(kBlock) swiglu_backward_kernel(GatedRows<T> a) {
  Amax<T> amax(a.amax);
  const bool weigh = kWeights && (kPlain || a.weights != nullptr);
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; row < a.rows;
       row += warps) {
    const T* gate = a.x + row * 2 * a.width;
    const T* dy = a.dy + row * a.width;
    T* y = a.y != nullptr ? a.y + row * a.width : nullptr;
    T* dgate = a.dx + row * 2 * a.width;
    const int32_t index = weigh ? a.index[row] : 0;
    const float weight = weigh ? a.weights[index] : 1.0f;
    float dot = 0;
    for (int64_t i = threadIdx.x % kWarp * N; i < a.width; i += kWarp * N) {
      Floats<N> g = load<N>(gate + i), u = load<N>(gate + a.width + i);
      Floats<N> d = load<N>(dy + i);
      Floats<N> made;
      for (int k = 0; k < N; ++k) {
        const GatedPair pair = pair_of<kPlain>(g.at[k], u.at[k], a.unit);
        const Gate gated = gate_of<kGelu, kPlain>(pair.gate, a.unit);
        made.at[k] = pair.up * gated.value;
        if (kWeights) {
          dot = fmaf(made.at[k], d.at[k], dot);
          d.at[k] *= weight;
        }
        g.at[k] = pair.gate_free ? d.at[k] * pair.up * gated.slope : 0.0f;
        u.at[k] = pair.up_free ? d.at[k] * gated.value : 0.0f;
      }
      if (y != nullptr) store(y + i, made);
      store(dgate + i, g);
      store(dgate + a.width + i, u);
      amax.take(g);
      amax.take(u);
    }
    if (weigh) {
      dot = warp_sum(dot);
      if (threadIdx.x % kWarp == 0) a.dweights[index] = dot;
    }
  }
  amax.template finish<kBlock>();
}

template <typename T, int N, bool kGelu>
auto swiglu_forward_kernel_of(const GatedRows<T>& a) {
  return a.unit.plain ? swiglu_forward_kernel<T, N, kGelu, true>
                      : swiglu_forward_kernel<T, N, kGelu, false>;
}
template <typename T, int N, bool kGelu>
auto swiglu_backward_kernel_of(const GatedRows<T>& a) {
  if (!a.unit.plain) return swiglu_backward_kernel<T, N, kGelu, false, true>;
  return a.weights != nullptr ? swiglu_backward_kernel<T, N, kGelu, true, true>
                              : swiglu_backward_kernel<T, N, kGelu, true, false>;
}

template <typename Form>
void gelu_forward_of(Queue& queue, const Tensor& x, const Tensor& y) {
  with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    with_pack<kPackOf<T>>(aligned({x.data, y.data}), [&](auto pack) {
      each<decltype(pack)::value>(queue, x.numel(), Gelu<T, Form>{x.as<const T>(), y.as<T>()});
    });
  });
}

template <typename Form, bool kAgain>
void gelu_backward_of(Queue& queue, const Tensor& dy, const Tensor& aux, const Tensor& y) {
  with_type(dy.dtype, [&](auto type) {
    using T = decltype(type);
    const GeluBackward<T, Form, kAgain> body = {dy.as<T>(), aux.as<const T>(), y.as<T>()};
    with_pack<kPackOf<T>>(aligned({body.dy, body.aux, body.y}),
                          [&](auto pack) { each<decltype(pack)::value>(queue, dy.numel(), body); });
  });
}

}  // namespace

void gelu_forward(Queue& queue, Tensor x, Tensor y) {
  gelu_forward_of<TanhForm>(queue, x, y);
}
void gelu_backward(Queue& queue, Tensor dy, Tensor aux) {
  gelu_backward_of<TanhForm, false>(queue, dy, aux, {});
}
void gelu_exact_forward(Queue& queue, Tensor x, Tensor y) {
  gelu_forward_of<ExactForm>(queue, x, y);
}
void gelu_exact_backward(Queue& queue, Tensor dy, Tensor x, Tensor y) {
  if (y) {
    gelu_backward_of<ExactForm, true>(queue, dy, x, y);
  } else {
    gelu_backward_of<ExactForm, false>(queue, dy, x, y);
  }
}

void swiglu_forward(Queue& queue, const Swiglu& args) {
  with_type(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const GatedRows<T> a = {.x = args.x.as<const T>(),
                            .y = args.y.as<T>(),
                            .rows = args.y.rows(),
                            .width = args.y.cols(),
                            .amax = args.amax.as<uint32_t>(),
                            .unit = UnitTerms(args.unit)};
    const bool packs = aligned({a.x, a.y}) && a.width % kPackOf<T> == 0;
    with_pack<kPackOf<T>>(packs, [&](auto pack) {
      constexpr int kPack = decltype(pack)::value;
      launch(a.unit.gelu ? swiglu_forward_kernel_of<T, kPack, true>(a)
                         : swiglu_forward_kernel_of<T, kPack, false>(a),
             blocks_for(queue, a.rows, kWarps), dim3(kBlock), 0, queue.stream(), a);
    });
  });
}

void swiglu_backward(Queue& queue, const SwigluBackward& args) {
  with_type(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const GatedRows<T> a = {.x = args.x.as<const T>(),
                            .y = args.y.as<T>(),
                            .rows = args.dy.rows(),
                            .width = args.dy.cols(),
                            .amax = args.amax.as<uint32_t>(),
                            .unit = UnitTerms(args.unit),
                            .dy = args.dy.as<const T>(),
                            .dx = args.dx.as<T>(),
                            .index = args.rows.index.as<const int32_t>(),
                            .weights = args.rows.weights.as<const float>(),
                            .dweights = args.rows.dweights.as<float>()};
    const bool packs = aligned({a.x, a.y, a.dy, a.dx}) && a.width % kPackOf<T> == 0;
    with_pack<kPackOf<T>>(packs, [&](auto pack) {
      constexpr int kPack = decltype(pack)::value;
      launch(a.unit.gelu ? swiglu_backward_kernel_of<T, kPack, true>(a)
                         : swiglu_backward_kernel_of<T, kPack, false>(a),
             blocks_for(queue, a.rows, kWarps), dim3(kBlock), 0, queue.stream(), a);
    });
  });
}

}  // namespace mtl::cuda
