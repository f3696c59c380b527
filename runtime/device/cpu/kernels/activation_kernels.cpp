// SwiGLU and its gradient. (GELU belongs to the matmul: matmul_kernels.cpp.)
#include "runtime/device/cpu/kernels/parts.h"
#include "runtime/device/cpu/kernels/vector.h"

namespace mtl::kernels::MTL_ISA {
namespace {

template <class T>
void swiglu_forward(const Swiglu& args) {
  const int64_t width = args.width;
  for (int64_t r = 0; r < args.rows; ++r) {
    const T* gate = static_cast<const T*>(args.x) + r * 2 * width;
    const T* up = gate + width;
    T* y = static_cast<T*>(args.out) + r * width;
    each(width, [&](int64_t i, auto lanes) MTL_LAMBDA {
      const F g = load(gate + i, lanes);
      store(y + i, g / (1.0f + exp(-g)) * load(up + i, lanes), lanes);
    });
  }
}

// With s = sigmoid(g): silu'(g) = s + g s (1 - s), and 1 - s = e^-g s without a cancellation.
template <class T>
void swiglu_backward(const Swiglu& args) {
  const int64_t width = args.width;
  for (int64_t r = 0; r < args.rows; ++r) {
    const T* gate = static_cast<const T*>(args.x) + r * 2 * width;
    const T* up = gate + width;
    const T* dy = static_cast<const T*>(args.dy) + r * width;
    T* dgate = static_cast<T*>(args.out) + r * 2 * width;
    T* dup = dgate + width;
    each(width, [&](int64_t i, auto lanes) MTL_LAMBDA {
      const F g = load(gate + i, lanes), u = load(up + i, lanes), d = load(dy + i, lanes);
      const F e = exp(-g);
      const F s = 1.0f / (1.0f + e);
      const F silu = g * s;
      store(dgate + i, d * u * (s + silu * (e * s)), lanes);
      store(dup + i, d * silu, lanes);
    });
  }
}

template <class T>
void add_typed(TypedKernels& table) {
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
