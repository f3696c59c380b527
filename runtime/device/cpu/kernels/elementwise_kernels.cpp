// fill, scale, add, cast, sums over rows, and the search for what is not finite: loops bound by
// memory.
#include "runtime/device/cpu/kernels/parts.h"
#include "runtime/device/cpu/kernels/vector.h"

namespace mtl::kernels::MTL_ISA {
namespace {

// Outputs of one thread from this size on go around the caches: they would not survive there until
// their next use. Never for 16-bit copies of less, which the next matmul reads at once.
constexpr int64_t kStreamBytes = 8 << 20;

// to[i] = make(i, lanes) for outputs that are not read first.
template <class T, class Make>
MTL_INLINE void write(T* to, int64_t n, Make make) {
  if (n * static_cast<int64_t>(sizeof(T)) < kStreamBytes || !can_stream(to)) {
    each(n, [&](int64_t i, auto lanes) MTL_LAMBDA { store(to + i, make(i, lanes), lanes); });
    return;
  }
  const int64_t whole = n / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) stream(to + i, make(i, Full{}));
  stream_done();
  if (whole < n) store(to + whole, make(whole, Part{n - whole}), Part{n - whole});
}

template <class T>
void fill(void* x, int64_t n, float value) {
  const F v = splat(value);
  write(static_cast<T*>(x), n, [&](int64_t, auto) MTL_LAMBDA { return v; });
}

template <class T>
void scale(void* x, int64_t n, float factor) {
  T* p = static_cast<T*>(x);
  each(n,
       [&](int64_t i, auto lanes) MTL_LAMBDA { store(p + i, load(p + i, lanes) * factor, lanes); });
}

template <class From, class To>
MTL_INLINE void add_to(const From* x, To* y, int64_t n) {
  each(n, [&](int64_t i, auto lanes)
              MTL_LAMBDA { store(y + i, load(y + i, lanes) + load(x + i, lanes), lanes); });
}
template <class T>
void add(const void* x, void* y, int64_t n) {
  add_to(static_cast<const T*>(x), static_cast<T*>(y), n);
}
template <class T>
void blend(const void* x, void* y, int64_t n, float of_x, float of_y) {
  const T* from = static_cast<const T*>(x);
  T* to = static_cast<T*>(y);
  each(n, [&](int64_t i, auto lanes) MTL_LAMBDA {
    store(to + i, load(from + i, lanes) * of_x + load(to + i, lanes) * of_y, lanes);
  });
}
template <class T>
void add_to_f32(const void* x, float* y, int64_t n) {
  add_to(static_cast<const T*>(x), y, n);
}

template <class T>
void from_f32(const float* from, void* to, int64_t n) {
  write(static_cast<T*>(to), n,
        [&](int64_t i, auto lanes) MTL_LAMBDA { return load(from + i, lanes); });
}
template <class T>
void to_f32(const void* from, float* to, int64_t n) {
  const T* x = static_cast<const T*>(from);
  write(to, n, [&](int64_t i, auto lanes) MTL_LAMBDA { return load(x + i, lanes); });
}

// Every 4096 elements a look whether one of them was not finite: then x - x is NaN, else 0.
template <class T>
bool all_finite(const void* x, int64_t n) {
  constexpr int64_t kBlock = 4096;
  for (int64_t first = 0; first < n; first += kBlock) {
    const T* block = static_cast<const T*>(x) + first;
    F sums[4] = {};
    each4(n - first < kBlock ? n - first : kBlock, [&](int64_t i, auto lanes, int k) MTL_LAMBDA {
      const F v = load(block + i, lanes);
      sums[k] += v - v;
    });
    if (sum_lanes(sums) != 0) return false;
  }
  return true;
}

// Four rows per pass over the sums.
template <class T>
void column_sums(const void* x, int64_t rows, int64_t cols, float* sums) {
  const T* row = static_cast<const T*>(x);
  each(cols, [&](int64_t i, auto lanes) MTL_LAMBDA { store(sums + i, F{}, lanes); });
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4, row += 4 * cols) {
    each(cols, [&](int64_t i, auto lanes) MTL_LAMBDA {
      const F four = (load(row + i, lanes) + load(row + cols + i, lanes)) +
                     (load(row + 2 * cols + i, lanes) + load(row + 3 * cols + i, lanes));
      store(sums + i, load(sums + i, lanes) + four, lanes);
    });
  }
  for (; r < rows; ++r, row += cols) add_to(row, sums, cols);
}

void combine(const float* partials, int64_t chunks, int64_t stride, int64_t cols, float* out,
             bool accumulate) {
  constexpr int64_t kBlock = 64;
  for (int64_t c = 0; c < cols; c += kBlock) {
    const int64_t n = cols - c < kBlock ? cols - c : kBlock;
    double sums[kBlock] = {};
    for (int64_t i = 0; i < chunks; ++i) {
      for (int64_t j = 0; j < n; ++j) sums[j] += static_cast<double>(partials[i * stride + c + j]);
    }
    for (int64_t j = 0; j < n; ++j) {
      out[c + j] =
          static_cast<float>(accumulate ? static_cast<double>(out[c + j]) + sums[j] : sums[j]);
    }
  }
}

template <class T>
void add_typed(TypedKernels& table) {
  table.fill = fill<T>;
  table.scale = scale<T>;
  table.add = add<T>;
  table.blend = blend<T>;
  table.add_to_f32 = add_to_f32<T>;
  table.column_sums = column_sums<T>;
  table.from_f32 = from_f32<T>;
  table.to_f32 = to_f32<T>;
  table.all_finite = all_finite<T>;
}

}  // namespace

void add_elementwise_kernels(VectorKernels& table) {
  add_typed<float>(table.f32);
  add_typed<uint16_t>(table.bf16);
  add_typed<_Float16>(table.f16);
  table.combine = combine;
}

}  // namespace mtl::kernels::MTL_ISA
