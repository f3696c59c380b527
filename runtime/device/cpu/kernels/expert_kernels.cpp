// Rows of experts: scaling one on its way, adding several with weights, the way back through a
// weight, and the product with a vector.
#include "runtime/device/cpu/kernels/parts.h"
#include "runtime/device/cpu/kernels/vector.h"

namespace mtl::kernels::MTL_ISA {
namespace {

template <class T>
void scale_row(const void* from, float weight, void* to, int64_t cols) {
  const T* x = static_cast<const T*>(from);
  T* y = static_cast<T*>(to);
  each(cols,
       [&](int64_t i, auto lanes) MTL_LAMBDA { store(y + i, load(x + i, lanes) * weight, lanes); });
}

template <class T>
void combine_row(const CombineRow& args) {
  const T* from = static_cast<const T*>(args.from);
  T* to = static_cast<T*>(args.to);
  const int64_t cols = args.cols;
  each(cols, [&](int64_t i, auto lanes) MTL_LAMBDA {
    F sum = {};
    for (int64_t j = 0; j < args.count; ++j) {
      const F x = load(from + args.rows[j] * cols + i, lanes);
      sum += args.weights ? x * args.weights[j] : x;
    }
    store(to + i, sum, lanes);
  });
}

template <class T>
float row_product(const void* x, const void* y, int64_t cols) {
  F sums[4] = {};
  each4(cols, [&](int64_t i, auto lanes, int k) MTL_LAMBDA {
    sums[k] +=
        load(static_cast<const T*>(x) + i, lanes) * load(static_cast<const T*>(y) + i, lanes);
  });
  return sum_lanes(sums);
}

template <class T>
float weigh_row_backward(const void* x, void* dy, float weight, int64_t cols) {
  const T* values = static_cast<const T*>(x);
  T* gradient = static_cast<T*>(dy);
  F sums[4] = {};
  each4(cols, [&](int64_t i, auto lanes, int k) MTL_LAMBDA {
    const F d = load(gradient + i, lanes);
    sums[k] += load(values + i, lanes) * d;
    store(gradient + i, d * weight, lanes);
  });
  return sum_lanes(sums);
}

template <class T>
void add_typed(TypedKernels& table) {
  table.scale_row = scale_row<T>;
  table.combine_row = combine_row<T>;
  table.row_product = row_product<T>;
  table.weigh_row_backward = weigh_row_backward<T>;
}

}  // namespace

void add_expert_kernels(VectorKernels& table) {
  add_typed<float>(table.f32);
  add_typed<uint16_t>(table.bf16);
  add_typed<_Float16>(table.f16);
}

}  // namespace mtl::kernels::MTL_ISA
