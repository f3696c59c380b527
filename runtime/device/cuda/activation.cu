// GELU alone, SwiGLU and GeGLU: one pass. Bytes per element of the output, with s the size of the
// type: gelu_forward 2 s, gelu_backward 3 s, swiglu_forward 3 s, swiglu_backward (per element of
// dy) 5 s; backward that writes y too one s more.
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

// Rows of width f in y and dy, of 2 f in x and dx. A block's warps take a row each, so that nobody
// divides an element's index by the width.
template <typename T>
struct GatedRows {
  const T* x;
  T* y;  // backward: may be null
  int64_t rows, width;
  uint32_t* amax;
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
// With s = sigmoid(g): silu'(g) = s + g s (1 - s).
template <bool kGelu>
__device__ Gate gate_of(float g) {
  if constexpr (kGelu) {
    return {gelu(g), gelu_derivative(g)};
  } else {
    const Sigmoid s = sigmoid(g);
    const float silu = g * s.value;
    return {silu, s.value + silu * s.rest};
  }
}

template <typename T, int N, bool kGelu>
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
      for (int k = 0; k < N; ++k) u.at[k] *= gate_of<kGelu>(g.at[k]).value;
      store(y + i, u);
      amax.take(u);
    }
  }
  amax.template finish<kBlock>();
}

// y is the product that forward makes.
template <typename T, int N, bool kGelu, bool kWeights>
__global__ void __launch_bounds__(kBlock) swiglu_backward_kernel(GatedRows<T> a) {
  Amax<T> amax(a.amax);
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; row < a.rows;
       row += warps) {
    const T* gate = a.x + row * 2 * a.width;
    const T* dy = a.dy + row * a.width;
    T* y = a.y != nullptr ? a.y + row * a.width : nullptr;
    T* dgate = a.dx + row * 2 * a.width;
    const int32_t index = kWeights ? a.index[row] : 0;
    const float weight = kWeights ? a.weights[index] : 1.0f;
    float dot = 0;
    for (int64_t i = threadIdx.x % kWarp * N; i < a.width; i += kWarp * N) {
      Floats<N> g = load<N>(gate + i), u = load<N>(gate + a.width + i);
      Floats<N> d = load<N>(dy + i);
      Floats<N> made;
      for (int k = 0; k < N; ++k) {
        const Gate gated = gate_of<kGelu>(g.at[k]);
        made.at[k] = u.at[k] * gated.value;
        if (kWeights) {
          dot = fmaf(made.at[k], d.at[k], dot);
          d.at[k] *= weight;
        }
        g.at[k] = d.at[k] * u.at[k] * gated.slope;
        u.at[k] = d.at[k] * gated.value;
      }
      if (y != nullptr) store(y + i, made);
      store(dgate + i, g);
      store(dgate + a.width + i, u);
      amax.take(g);
      amax.take(u);
    }
    if (kWeights) {
      dot = warp_sum(dot);
      if (threadIdx.x % kWarp == 0) a.dweights[index] = dot;
    }
  }
  amax.template finish<kBlock>();
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
                            .amax = args.amax.as<uint32_t>()};
    const bool packs = aligned({a.x, a.y}) && a.width % kPackOf<T> == 0;
    with_pack<kPackOf<T>>(packs, [&](auto pack) {
      constexpr int kPack = decltype(pack)::value;
      launch(args.gelu ? swiglu_forward_kernel<T, kPack, true>
                       : swiglu_forward_kernel<T, kPack, false>,
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
                            .dy = args.dy.as<const T>(),
                            .dx = args.dx.as<T>(),
                            .index = args.rows.index.as<const int32_t>(),
                            .weights = args.rows.weights.as<const float>(),
                            .dweights = args.rows.dweights.as<float>()};
    const bool packs = aligned({a.x, a.y, a.dy, a.dx}) && a.width % kPackOf<T> == 0;
    with_pack<kPackOf<T>>(packs, [&](auto pack) {
      constexpr int kPack = decltype(pack)::value;
      launch(args.gelu              ? swiglu_backward_kernel<T, kPack, true, false>
             : a.weights != nullptr ? swiglu_backward_kernel<T, kPack, false, true>
                                    : swiglu_backward_kernel<T, kPack, false, false>,
             blocks_for(queue, a.rows, kWarps), dim3(kBlock), 0, queue.stream(), a);
    });
  });
}

}  // namespace mtl::cuda
