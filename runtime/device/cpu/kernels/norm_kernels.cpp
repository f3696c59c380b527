// Layer normalisation, and without a mean (kCentered = false) RMS normalisation. A row is read
// several times but stays in the first-level caches, so that memory is passed over once per
// direction.
#include "runtime/device/cpu/kernels/parts.h"
#include "runtime/device/cpu/kernels/vector.h"

namespace mtl::kernels::MTL_ISA {
namespace {

// Mean first, then the variance about it: no cancellation for rows far from zero.
template <class T, bool kCentered>
void norm_forward(const NormForward& args) {
  const T* gamma = static_cast<const T*>(args.gamma);
  const T* beta = static_cast<const T*>(args.beta);
  const int64_t cols = args.cols;
  const float inverse = 1.0f / static_cast<float>(cols);
  for (int64_t r = 0; r < args.rows; ++r) {
    const T* x = static_cast<const T*>(args.x) + r * cols;
    T* y = static_cast<T*>(args.y) + r * cols;
    float mean = 0;
    if constexpr (kCentered) {
      F sums[4] = {};
      each4(cols, [&](int64_t i, auto lanes, int k) MTL_LAMBDA { sums[k] += load(x + i, lanes); });
      mean = sum_lanes(sums) * inverse;
      args.mean[r] = mean;
    }
    F squares[4] = {};
    each4(cols, [&](int64_t i, auto lanes, int k) MTL_LAMBDA {
      const F d = load(x + i, lanes, mean) - mean;
      squares[k] += d * d;
    });
    const float variance = sum_lanes(squares) * inverse;
    const float rstd = 1.0f / __builtin_sqrtf(variance + args.eps);
    args.rstd[r] = rstd;
    if (beta) {
      each(cols, [&](int64_t i, auto lanes) MTL_LAMBDA {
        const F normed = (load(x + i, lanes) - mean) * rstd;
        store(y + i, normed * load(gamma + i, lanes) + load(beta + i, lanes), lanes);
      });
    } else {
      each(cols, [&](int64_t i, auto lanes) MTL_LAMBDA {
        const F normed = (load(x + i, lanes) - mean) * rstd;
        store(y + i, normed * load(gamma + i, lanes), lanes);
      });
    }
  }
}

// With n = (x - mean) rstd and g = dy gamma:
//   dx = rstd (g - mean(g) - n mean(g n)),  dgamma = sum dy n,  dbeta = sum dy.
// Not centered: n = x rstd, and dx without mean(g).
template <class T, bool kCentered>
void norm_backward(const NormBackward& args) {
  const T* gamma = static_cast<const T*>(args.gamma);
  const int64_t cols = args.cols;
  const float inverse = 1.0f / static_cast<float>(cols);
  float* dgamma = args.dgamma;
  float* dbeta = args.dbeta;
  each(cols, [&](int64_t i, auto lanes) MTL_LAMBDA {
    store(dgamma + i, F{}, lanes);
    if (dbeta) store(dbeta + i, F{}, lanes);
  });
  for (int64_t r = 0; r < args.rows; ++r) {
    const T* dy = static_cast<const T*>(args.dy) + r * cols;
    const T* x = static_cast<const T*>(args.x) + r * cols;
    T* dx = static_cast<T*>(args.dx) + r * cols;
    const float mean = kCentered ? args.mean[r] : 0, rstd = args.rstd[r];
    F sum_g[2] = {}, sum_gn[2] = {};
    each4(cols, [&](int64_t i, auto lanes, int k) MTL_LAMBDA {
      const F dy_i = load(dy + i, lanes);
      const F n = (load(x + i, lanes, mean) - mean) * rstd;
      const F g = dy_i * load(gamma + i, lanes);
      sum_g[k % 2] += g;
      sum_gn[k % 2] += g * n;
      store(dgamma + i, load(dgamma + i, lanes) + dy_i * n, lanes);
      if (dbeta) store(dbeta + i, load(dbeta + i, lanes) + dy_i, lanes);
    });
    const float mean_g = kCentered ? sum_lanes(sum_g[0] + sum_g[1]) * inverse : 0;
    const float mean_gn = sum_lanes(sum_gn[0] + sum_gn[1]) * inverse;
    const bool add = args.add_to_dx;
    each(cols, [&](int64_t i, auto lanes) MTL_LAMBDA {
      const F n = (load(x + i, lanes) - mean) * rstd;
      const F g = load(dy + i, lanes) * load(gamma + i, lanes);
      F d = (g - mean_g - n * mean_gn) * rstd;
      if (add) d += load(dx + i, lanes);
      store(dx + i, d, lanes);
    });
  }
}

template <class T>
void add_typed(TypedKernels& table) {
  table.norm_forward = norm_forward<T, true>;
  table.norm_backward = norm_backward<T, true>;
  table.rms_norm_forward = norm_forward<T, false>;
  table.rms_norm_backward = norm_backward<T, false>;
}

}  // namespace

void add_norm_kernels(VectorKernels& table) {
  add_typed<float>(table.f32);
  add_typed<uint16_t>(table.bf16);
  add_typed<_Float16>(table.f16);
}

}  // namespace mtl::kernels::MTL_ISA
