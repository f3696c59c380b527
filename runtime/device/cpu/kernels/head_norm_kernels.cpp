// RMS normalisation of each head's vector. A row is read several times but stays in the first-level
// caches, so that memory is passed over once per direction.
#include "runtime/device/cpu/kernels/parts.h"
#include "runtime/device/cpu/kernels/vector.h"

namespace mtl::kernels::MTL_ISA {
namespace {

template <class T>
void head_norm_forward(const HeadNormRows& args) {
  const T* gamma = static_cast<const T*>(args.gamma);
  const int64_t dim = args.dim;
  const float inverse = 1.0f / static_cast<float>(dim);
  for (int64_t r = 0; r < args.rows; ++r) {
    T* x = static_cast<T*>(args.x) + r * args.stride;
    __builtin_memcpy(static_cast<T*>(args.raw) + r * args.raw_stride, x,
                     static_cast<size_t>(args.heads * dim) * sizeof(T));
    for (int64_t h = 0; h < args.heads; ++h, x += dim) {
      F squares[4] = {};
      each4(dim, [&](int64_t i, auto lanes, int k) MTL_LAMBDA {
        const F v = load(x + i, lanes);
        squares[k] += v * v;
      });
      const float rstd = 1.0f / __builtin_sqrtf(sum_lanes(squares) * inverse + args.eps);
      args.rstd[r * args.heads + h] = rstd;
      each(dim, [&](int64_t i, auto lanes) MTL_LAMBDA {
        store(x + i, load(x + i, lanes) * rstd * load(gamma + i, lanes), lanes);
      });
    }
  }
}

// With n = x rstd and g = dy gamma:  dx = rstd (g - n mean(g n)),  dgamma = sum dy n.
template <class T>
void head_norm_backward(const HeadNormRowsBackward& args) {
  const T* gamma = static_cast<const T*>(args.gamma);
  const int64_t dim = args.dim;
  const float inverse = 1.0f / static_cast<float>(dim);
  float* dgamma = args.dgamma;
  each(dim, [&](int64_t i, auto lanes) MTL_LAMBDA { store(dgamma + i, F{}, lanes); });
  for (int64_t r = 0; r < args.rows; ++r) {
    T* dx = static_cast<T*>(args.dx) + r * args.stride;
    const T* x = static_cast<const T*>(args.raw) + r * args.raw_stride;
    for (int64_t h = 0; h < args.heads; ++h, dx += dim, x += dim) {
      const float rstd = args.rstd[r * args.heads + h];
      F sums[4] = {};
      each4(dim, [&](int64_t i, auto lanes, int k) MTL_LAMBDA {
        const F dyn = load(dx + i, lanes) * (load(x + i, lanes) * rstd);
        sums[k] += dyn * load(gamma + i, lanes);
        store(dgamma + i, load(dgamma + i, lanes) + dyn, lanes);
      });
      const float mean_gn = sum_lanes(sums) * inverse;
      each(dim, [&](int64_t i, auto lanes) MTL_LAMBDA {
        const F n = load(x + i, lanes) * rstd;
        const F g = load(dx + i, lanes) * load(gamma + i, lanes);
        store(dx + i, (g - n * mean_gn) * rstd, lanes);
      });
    }
  }
}

template <class T>
void add_typed(TypedKernels& table) {
  table.head_norm_forward = head_norm_forward<T>;
  table.head_norm_backward = head_norm_backward<T>;
}

}  // namespace

void add_head_norm_kernels(VectorKernels& table) {
  add_typed<float>(table.f32);
  add_typed<uint16_t>(table.bf16);
  add_typed<_Float16>(table.f16);
}

}  // namespace mtl::kernels::MTL_ISA
