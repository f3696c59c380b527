// AdamW (Loshchilov, Hutter: "Decoupled weight decay regularization", ICLR 2019), Adam, SGD with
// momentum, Lion, what Muon does element by element, and the sums of squares for the gradient norm:
// one pass over memory each.
#include <type_traits>

#include "runtime/device/cpu/kernels/parts.h"
#include "runtime/device/cpu/kernels/vector.h"

namespace mtl::kernels::MTL_ISA {
namespace {

// While it lives, numbers below 2^-126 count as zero. The moments of parameters without gradient
// (rows of an embedding that no token uses) decay into that range and would stay there for ever,
// where every operation costs a hundred cycles.
class FlushTinyToZero {
 public:
  FlushTinyToZero() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040u); }
  ~FlushTinyToZero() { _mm_setcsr(saved_); }
  FlushTinyToZero(const FlushTinyToZero&) = delete;
  FlushTinyToZero& operator=(const FlushTinyToZero&) = delete;

 private:
  unsigned saved_;
};

// update(i, lanes, old) gives the new masters of every vector. Weights in f16, a copy of them, are
// the only array that is not read first: past the caches it costs 2 bytes of traffic per parameter
// instead of 4.
template <class T, class Update>
MTL_INLINE void each_update(void* masters, void* copy, int64_t n, Update update) {
  const FlushTinyToZero flush;
  T* weights = static_cast<T*>(copy);
  if constexpr (std::is_same_v<T, uint16_t>) {
    uint16_t* rests = static_cast<uint16_t*>(masters);
    each(n, [&](int64_t i, auto lanes) MTL_LAMBDA {
      const F old = load_parts(weights + i, rests + i, lanes);
      store_parts(weights + i, rests + i, update(i, lanes, old), lanes);
    });
    return;
  }
  float* master = static_cast<float*>(masters);
  const auto updated = [&](int64_t i, auto lanes) MTL_LAMBDA {
    const F p = update(i, lanes, load(master + i, lanes));
    store(master + i, p, lanes);
    return p;
  };
  if (!weights) {
    each(n, [&](int64_t i, auto lanes) MTL_LAMBDA { updated(i, lanes); });
  } else if (can_stream(weights)) {
    each(n, [&](int64_t i, auto lanes) MTL_LAMBDA {
      const F p = updated(i, lanes);
      if constexpr (sizeof(lanes) == sizeof(Full)) {
        stream(weights + i, p);
      } else {
        store(weights + i, p, lanes);
      }
    });
    stream_done();
  } else {
    each(n,
         [&](int64_t i, auto lanes) MTL_LAMBDA { store(weights + i, updated(i, lanes), lanes); });
  }
}

template <class T>
void adamw(const AdamWRange& a) {
  float* exp_avg = a.exp_avg;
  float* exp_avg_sq = a.exp_avg_sq;
  const float* grad = a.grad;
  // Copies: the compiler cannot know that the stores leave `a` alone.
  const float beta1 = a.beta1, one_minus_beta1 = a.one_minus_beta1;
  const float beta2 = a.beta2, one_minus_beta2 = a.one_minus_beta2;
  const float rate = a.rate, correction = a.inverse_sqrt_correction2;
  const float eps = a.eps, keep = a.keep, decay = a.coupled_decay, grad_scale = a.grad_scale;
  each_update<T>(a.master, a.weights, a.n, [&](int64_t i, auto lanes, F old) MTL_LAMBDA {
    const F g = load(grad + i, lanes) * grad_scale + old * decay;
    const F m = load(exp_avg + i, lanes) * beta1 + g * one_minus_beta1;
    const F v = load(exp_avg_sq + i, lanes) * beta2 + g * g * one_minus_beta2;
    const F step = m / (sqrt(v) * correction + eps) * rate;
    store(exp_avg + i, m, lanes);
    store(exp_avg_sq + i, v, lanes);
    return old * keep - step;
  });
}

template <class T>
void sgd(const SgdRange& a) {
  float* momentum_buffer = a.momentum_buffer;
  const float* grad = a.grad;
  const float lr = a.lr, momentum = a.momentum, decay = a.weight_decay, grad_scale = a.grad_scale;
  each_update<T>(a.master, a.weights, a.n, [&](int64_t i, auto lanes, F old) MTL_LAMBDA {
    const F g = load(grad + i, lanes) * grad_scale + old * decay;
    const F buffer = load(momentum_buffer + i, lanes) * momentum + g;
    store(momentum_buffer + i, buffer, lanes);
    return old - buffer * lr;
  });
}

template <class T>
void lion(const LionRange& a) {
  float* exp_avg = a.exp_avg;
  const float* grad = a.grad;
  const float beta1 = a.beta1, one_minus_beta1 = 1 - a.beta1;
  const float beta2 = a.beta2, one_minus_beta2 = 1 - a.beta2;
  const float lr = a.lr, keep = a.keep, grad_scale = a.grad_scale;
  each_update<T>(a.master, a.weights, a.n, [&](int64_t i, auto lanes, F old) MTL_LAMBDA {
    const F g = load(grad + i, lanes) * grad_scale;
    const F m = load(exp_avg + i, lanes);
    const F direction = m * beta1 + g * one_minus_beta1;
    // Comparisons give -1 where they hold.
    const F sign =
        __builtin_convertvector(direction < 0, F) - __builtin_convertvector(direction > 0, F);
    store(exp_avg + i, m * beta2 + g * one_minus_beta2, lanes);
    return old * keep - sign * lr;
  });
}

void momentum(const MomentumRange& a) {
  const FlushTinyToZero flush;
  float *buffers = a.buffer, *grad = a.grad;
  const float momentum = a.momentum, rest = 1 - a.momentum, grad_scale = a.grad_scale;
  const float of_buffer = a.of_buffer, of_gradient = a.of_gradient;
  each(a.n, [&](int64_t i, auto lanes) MTL_LAMBDA {
    const F g = load(grad + i, lanes) * grad_scale;
    const F buffer = load(buffers + i, lanes) * momentum + g * rest;
    store(buffers + i, buffer, lanes);
    store(grad + i, buffer * of_buffer + g * of_gradient, lanes);
  });
}

template <class T>
void descend(const DescendRange& a) {
  const float* grad = a.grad;
  const float lr = a.lr, keep = a.keep;
  each_update<T>(a.master, a.weights, a.n, [&](int64_t i, auto lanes, F old) MTL_LAMBDA {
    return old * keep - load(grad + i, lanes) * lr;
  });
}

// f64 throughout: squares of f32 are exact, large gradients do not overflow. Sixteen sums whatever
// the vector, added in pairs: the same bits on every instruction set.
MTL_INLINE double chunk_sum_squares(const float* x, int64_t n) {
  constexpr int kSums = 16;
  constexpr int kDoubles = kLanes / 2;
  D sums[kSums / kDoubles] = {};
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (int k = 0; k < kSums / kDoubles; ++k) {
      HalfF half;
      __builtin_memcpy(&half, x + i + k * kDoubles, sizeof half);
      const D d = __builtin_convertvector(half, D);
      sums[k] += d * d;
    }
  }
  double lanes[kSums];
  __builtin_memcpy(lanes, sums, sizeof lanes);
  for (int64_t k = 0; i + k < n; ++k) {
    const double d = static_cast<double>(x[i + k]);
    lanes[k] += d * d;
  }
  for (int width = kSums / 2; width > 0; width /= 2) {
    for (int k = 0; k < width; ++k) lanes[k] += lanes[k + width];
  }
  return lanes[0];
}

void sum_squares(const float* x, int64_t n, double* partials) {
  constexpr int64_t kChunk = 4096;
  for (int64_t c = 0; c < n; c += kChunk) {
    partials[c / kChunk] = chunk_sum_squares(x + c, n - c < kChunk ? n - c : kChunk);
  }
}

template <class T>
void add_typed(TypedKernels& table) {
  table.adamw = adamw<T>;
  table.sgd = sgd<T>;
  table.lion = lion<T>;
  table.descend = descend<T>;
}

}  // namespace

void add_optimizer_kernels(VectorKernels& table) {
  add_typed<float>(table.f32);
  add_typed<uint16_t>(table.bf16);
  add_typed<_Float16>(table.f16);
  table.sum_squares = sum_squares;
  table.momentum = momentum;
}

}  // namespace mtl::kernels::MTL_ISA
