// Softmax cross-entropy over rows of tens of thousands of logits: three passes (maximum; sum of
// exponentials; gradient), each bound by memory once exp is a vector function.
#include "runtime/device/cpu/kernels/parts.h"
#include "runtime/device/cpu/kernels/vector.h"

namespace mtl::kernels::MTL_ISA {
namespace {

constexpr float kInfinity = __builtin_inff();

template <class T>
MTL_INLINE float to_float(const T& x) {
  return load(&x, Part{1})[0];
}

// tanh x, as matmul_math.h has it.
MTL_INLINE F tanh(F x) {
  const F s = x * x;
  const F near = x * (945.0f + s * (105.0f + s)) / (945.0f + s * (420.0f + 15.0f * s));
  const F far = 1.0f - 2.0f / (exp(x + x) + 1.0f);
  return s < 1.0f ? near : far;
}

// What a logit counts as; a lane that is not there stays -infinity.
template <bool kCaps>
struct Logits {
  float cap, inverse;
  explicit Logits(const CrossEntropyRows& args) : cap(args.cap), inverse(1 / args.cap) {}
  MTL_INLINE F of(F x) const {
    if constexpr (!kCaps) return x;
    return x == -kInfinity ? x : cap * tanh(x * inverse);
  }
  // And its derivative, of what of() has given.
  MTL_INLINE F slope(F capped) const {
    const F t = capped * inverse;
    return 1.0f - t * t;
  }
};

template <class T, bool kCaps>
void max_of_rows(const CrossEntropyRows& args) {
  const Logits<kCaps> logits(args);
  for (int64_t r = 0; r < args.rows; ++r) {
    const T* row = static_cast<const T*>(args.logits) + r * args.stride;
    F m[4] = {splat(-kInfinity), splat(-kInfinity), splat(-kInfinity), splat(-kInfinity)};
    each4(args.valid, [&](int64_t i, auto lanes, int k) MTL_LAMBDA {
      m[k] = max(logits.of(load(row + i, lanes, -kInfinity)), m[k]);
    });
    args.row_max[r] = max_lanes(max(max(m[0], m[1]), max(m[2], m[3])));
  }
}

// Sums of at most kBlock exponentials are in f32 (at most kBlock / kLanes / 4 additions per lane),
// sums of blocks in f64: the error does not grow with the vocabulary.
template <class T, bool kCaps>
void sums_of_rows(const CrossEntropyRows& args) {
  constexpr int64_t kBlock = 2048;
  const Logits<kCaps> logits(args);
  for (int64_t r = 0; r < args.rows; ++r) {
    const T* row = static_cast<const T*>(args.logits) + r * args.stride;
    const float row_max = args.row_max[r];
    double sum = 0;
    for (int64_t c = 0; c < args.valid; c += kBlock) {
      const T* block = row + c;
      F s[4] = {};
      each4(args.valid - c < kBlock ? args.valid - c : kBlock,
            [&](int64_t i, auto lanes, int k) MTL_LAMBDA {
              s[k] += exp(logits.of(load(block + i, lanes, -kInfinity)) - row_max);
            });
      sum += static_cast<double>(sum_lanes(s));
    }
    args.sum_exp[r] = static_cast<float>(sum);
    const int64_t target = args.targets[r] - args.first;
    const bool here = args.targets[r] >= 0 && target >= 0 && target < args.valid;
    args.target_logit[r] = here ? logits.of(splat(to_float(row[target])))[0] : 0;
  }
}

template <class T, bool kCaps>
void gradients_of_rows(const CrossEntropyRows& args, float scale) {
  const Logits<kCaps> logits(args);
  for (int64_t r = 0; r < args.rows; ++r) {
    T* row = static_cast<T*>(args.logits) + r * args.stride;
    if (args.targets[r] < 0) {
      __builtin_memset(row, 0, static_cast<size_t>(args.stride) * sizeof(T));
      continue;
    }
    const float row_max = args.row_max[r];
    const float factor = scale / args.sum_exp[r];
    const int64_t target = args.targets[r] - args.first;
    const bool here = target >= 0 && target < args.valid;
    const F target_logit = logits.of(splat(here ? to_float(row[target]) : 0));
    each(args.valid, [&](int64_t i, auto lanes) MTL_LAMBDA {
      const F x = logits.of(load(row + i, lanes));
      F gradient = exp(x - row_max) * factor;
      if constexpr (kCaps) gradient *= logits.slope(x);
      store(row + i, gradient, lanes);
    });
    if (here) {
      T lane[1];
      F gradient = exp(target_logit - row_max) * factor - scale;
      if constexpr (kCaps) gradient *= logits.slope(target_logit);
      store(lane, gradient, Part{1});
      row[target] = lane[0];
    }
    __builtin_memset(row + args.valid, 0,
                     static_cast<size_t>(args.stride - args.valid) * sizeof(T));
  }
}

template <class T>
void add_typed(TypedKernels& table) {
  table.cross_entropy_max = [](const CrossEntropyRows& args) {
    args.cap > 0 ? max_of_rows<T, true>(args) : max_of_rows<T, false>(args);
  };
  table.cross_entropy_sum = [](const CrossEntropyRows& args) {
    args.cap > 0 ? sums_of_rows<T, true>(args) : sums_of_rows<T, false>(args);
  };
  table.cross_entropy_backward = [](const CrossEntropyRows& args, float scale) {
    args.cap > 0 ? gradients_of_rows<T, true>(args, scale)
                 : gradients_of_rows<T, false>(args, scale);
  };
}

}  // namespace

void add_cross_entropy_kernels(VectorKernels& table) {
  add_typed<float>(table.f32);
  add_typed<uint16_t>(table.bf16);
  add_typed<_Float16>(table.f16);
}

}  // namespace mtl::kernels::MTL_ISA
