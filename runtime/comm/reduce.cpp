// Reductions block by block: the running sum of a block stays in the first-level cache while the
// ranks' inputs stream past it, so each input is read once and each output written once.
#include "runtime/comm/reduce.h"

#include <algorithm>
#include <cstring>

#include "common/half.h"

namespace mtl {

namespace {

// One build serves every x86-64: the loader picks the clone for the machine. ThreadSanitizer
// instruments the picking function, which runs before the sanitizer is up, and crashes.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define MTL_VECTOR_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MTL_VECTOR_CLONES
#endif

constexpr int64_t kBlockBytes = 16 << 10;

float add(float a, float b) {
  return a + b;
}
double add(double a, double b) {
  return a + b;
}
int32_t add(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}
// A NaN on any rank stays visible: a plain maximum would hide it or not, depending on the order.
template <typename T>
T greater(T a, T b) {
  return b > a || b != b ? b : a;  // NOLINT(misc-redundant-expression): a NaN
}

// out[i] = a[i] op b[i]; out may be a.
#define MTL_COMBINE(name, T, expression)                                      \
  MTL_VECTOR_CLONES void name(T* out, const T* a, const T* b, int64_t n) {    \
    _Pragma("GCC ivdep") for (int64_t i = 0; i < n; ++i) out[i] = expression; \
  }
MTL_COMBINE(add_f32, float, add(a[i], b[i]))
MTL_COMBINE(add_f64, double, add(a[i], b[i]))
MTL_COMBINE(add_i32, int32_t, add(a[i], b[i]))
MTL_COMBINE(max_f32, float, greater(a[i], b[i]))
MTL_COMBINE(max_f64, double, greater(a[i], b[i]))
MTL_COMBINE(max_i32, int32_t, greater(a[i], b[i]))
#undef MTL_COMBINE

// The loops over blocks of 16-bit floats, which are summed in f32.
struct HalfLoops {
  void (*widen)(float* out, const uint16_t* a, int64_t n);
  void (*add)(float* out, const uint16_t* b, int64_t n);
  void (*max)(float* out, const uint16_t* b, int64_t n);
  void (*narrow)(uint16_t* out, const float* a, int64_t n);
};
#define MTL_HALF_LOOPS(type)                                                       \
  MTL_VECTOR_CLONES void widen_##type(float* out, const uint16_t* a, int64_t n) {  \
    for (int64_t i = 0; i < n; ++i) out[i] = type##_to_f32(a[i]);                  \
  }                                                                                \
  MTL_VECTOR_CLONES void add_##type(float* out, const uint16_t* b, int64_t n) {    \
    for (int64_t i = 0; i < n; ++i) out[i] = add(out[i], type##_to_f32(b[i]));     \
  }                                                                                \
  MTL_VECTOR_CLONES void max_##type(float* out, const uint16_t* b, int64_t n) {    \
    for (int64_t i = 0; i < n; ++i) out[i] = greater(out[i], type##_to_f32(b[i])); \
  }                                                                                \
  MTL_VECTOR_CLONES void narrow_##type(uint16_t* out, const float* a, int64_t n) { \
    for (int64_t i = 0; i < n; ++i) out[i] = f32_to_##type(a[i]);                  \
  }
MTL_HALF_LOOPS(bf16)
MTL_HALF_LOOPS(f16)
#undef MTL_HALF_LOOPS
constexpr HalfLoops kBf16Loops = {widen_bf16, add_bf16, max_bf16, narrow_bf16};
constexpr HalfLoops kF16Loops = {widen_f16, add_f16, max_f16, narrow_f16};

using Pointers = std::span<const void* const>;
using Outputs = std::span<void* const>;

template <typename T>
void reduce(void (*combine)(T*, const T*, const T*, int64_t), Pointers inputs, Outputs outputs,
            int64_t numel) {
  constexpr int64_t kBlock = kBlockBytes / int64_t{sizeof(T)};
  alignas(64) T sum[kBlock];
  for (int64_t first = 0; first < numel; first += kBlock) {
    const int64_t n = std::min(kBlock, numel - first);
    const auto input = [&](size_t rank) { return static_cast<const T*>(inputs[rank]) + first; };
    if (inputs.size() == 1) {
      std::memcpy(sum, input(0), static_cast<size_t>(n) * sizeof(T));
    } else {
      combine(sum, input(0), input(1), n);
    }
    for (size_t rank = 2; rank < inputs.size(); ++rank) combine(sum, sum, input(rank), n);
    for (void* output : outputs) {
      std::memcpy(static_cast<T*>(output) + first, sum, static_cast<size_t>(n) * sizeof(T));
    }
  }
}

void reduce_half(const HalfLoops& loops, Reduce op, Pointers inputs, Outputs outputs,
                 int64_t numel) {
  const auto combine = op == Reduce::sum ? loops.add : loops.max;
  constexpr int64_t kBlock = kBlockBytes / int64_t{sizeof(float)};
  alignas(64) float sum[kBlock];
  alignas(64) uint16_t rounded[kBlock];
  for (int64_t first = 0; first < numel; first += kBlock) {
    const int64_t n = std::min(kBlock, numel - first);
    const auto input = [&](size_t rank) {
      return static_cast<const uint16_t*>(inputs[rank]) + first;
    };
    loops.widen(sum, input(0), n);
    for (size_t rank = 1; rank < inputs.size(); ++rank) combine(sum, input(rank), n);
    loops.narrow(rounded, sum, n);
    for (void* output : outputs) {
      std::memcpy(static_cast<uint16_t*>(output) + first, rounded,
                  static_cast<size_t>(n) * sizeof(uint16_t));
    }
  }
}

}  // namespace

bool reducible(DType dtype) {
  return is_compute_type(dtype) || dtype == DType::f64 || dtype == DType::i32;
}

void reduce_in_order(DType dtype, Reduce op, Pointers inputs, Outputs outputs, int64_t numel) {
  const bool sum = op == Reduce::sum;
  switch (dtype) {
    case DType::f32:
      return reduce<float>(sum ? add_f32 : max_f32, inputs, outputs, numel);
    case DType::f64:
      return reduce<double>(sum ? add_f64 : max_f64, inputs, outputs, numel);
    case DType::i32:
      return reduce<int32_t>(sum ? add_i32 : max_i32, inputs, outputs, numel);
    case DType::bf16:
      return reduce_half(kBf16Loops, op, inputs, outputs, numel);
    case DType::f16:
      return reduce_half(kF16Loops, op, inputs, outputs, numel);
    case DType::u8:
    case DType::u16:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      break;  // the communicators refuse it by reducible()
  }
}

}  // namespace mtl
