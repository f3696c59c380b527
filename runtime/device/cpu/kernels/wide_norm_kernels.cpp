// RMS normalisation of columns of a row as one vector, in two steps: between them sums go over
// ranks. Each loop passes over its columns once.
#include "runtime/device/cpu/kernels/parts.h"
#include "runtime/device/cpu/kernels/vector.h"

namespace mtl::kernels::MTL_ISA {
namespace {

template <class Args>
MTL_INLINE float rstd_of(const Args& args, int64_t row) {
  return 1.0f / __builtin_sqrtf(args.squares[row] * args.inverse + args.eps);
}

template <class T>
void wide_norm_squares(const WideNormRows& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    const T* x = static_cast<const T*>(args.x) + r * args.stride;
    F squares[4] = {};
    each4(args.columns, [&](int64_t i, auto lanes, int k) MTL_LAMBDA {
      const F v = load(x + i, lanes);
      squares[k] += v * v;
    });
    args.squares[r] = sum_lanes(squares);
  }
}

template <class T>
void wide_norm_forward(const WideNormRows& args) {
  const T* gamma = static_cast<const T*>(args.gamma);
  for (int64_t r = 0; r < args.rows; ++r) {
    T* x = static_cast<T*>(args.x) + r * args.stride;
    __builtin_memcpy(static_cast<T*>(args.raw) + r * args.raw_stride, x,
                     static_cast<size_t>(args.columns) * sizeof(T));
    const float rstd = rstd_of(args, r);
    each(args.columns, [&](int64_t i, auto lanes) MTL_LAMBDA {
      store(x + i, load(x + i, lanes) * rstd * load(gamma + i, lanes), lanes);
    });
  }
}

template <class T>
void wide_norm_products(const WideNormRowsBackward& args) {
  const T* gamma = static_cast<const T*>(args.gamma);
  for (int64_t r = 0; r < args.rows; ++r) {
    const T* dy = static_cast<const T*>(args.dx) + r * args.stride;
    const T* x = static_cast<const T*>(args.raw) + r * args.raw_stride;
    const float rstd = rstd_of(args, r);
    F sums[4] = {};
    each4(args.columns, [&](int64_t i, auto lanes, int k) MTL_LAMBDA {
      const F g = load(dy + i, lanes) * load(gamma + i, lanes);
      sums[k] += g * (load(x + i, lanes) * rstd);
    });
    args.products[r] = sum_lanes(sums);
  }
}

// With n = x rstd and g = dy gamma:  dx = rstd (g - n mean(g n)),  dgamma = sum dy n.
template <class T>
void wide_norm_backward(const WideNormRowsBackward& args) {
  const T* gamma = static_cast<const T*>(args.gamma);
  float* dgamma = args.dgamma;
  each(args.columns, [&](int64_t i, auto lanes) MTL_LAMBDA { store(dgamma + i, F{}, lanes); });
  for (int64_t r = 0; r < args.rows; ++r) {
    T* dx = static_cast<T*>(args.dx) + r * args.stride;
    const T* x = static_cast<const T*>(args.raw) + r * args.raw_stride;
    const float rstd = rstd_of(args, r);
    const float mean_gn = args.products[r] * args.inverse;
    each(args.columns, [&](int64_t i, auto lanes) MTL_LAMBDA {
      const F n = load(x + i, lanes) * rstd;
      const F dy = load(dx + i, lanes);
      store(dgamma + i, load(dgamma + i, lanes) + dy * n, lanes);
      store(dx + i, (dy * load(gamma + i, lanes) - n * mean_gn) * rstd, lanes);
    });
  }
}

template <class T>
void add_typed(TypedKernels& table) {
  table.wide_norm_squares = wide_norm_squares<T>;
  table.wide_norm_forward = wide_norm_forward<T>;
  table.wide_norm_products = wide_norm_products<T>;
  table.wide_norm_backward = wide_norm_backward<T>;
}

}  // namespace

void add_wide_norm_kernels(VectorKernels& table) {
  add_typed<float>(table.f32);
  add_typed<uint16_t>(table.bf16);
  add_typed<_Float16>(table.f16);
}

}  // namespace mtl::kernels::MTL_ISA
