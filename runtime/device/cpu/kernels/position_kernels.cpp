// Adding rows (a bias, learned positions, the residual) with dropout, and the way back.
#include "runtime/device/cpu/kernels/parts.h"
#include "runtime/device/cpu/kernels/philox.h"

namespace mtl::kernels::MTL_ISA {
namespace {

// body(c, lanes, factors) for every vector of a row, in blocks of columns whose dropout factors lie
// in a small buffer: factors[c] belongs to column c. Without a mask the factors are null.
template <class Body>
MTL_INLINE void each_masked(int64_t cols, const Mask* mask, uint64_t first_element, Body body) {
  if (!mask) {
    each(cols, [&](int64_t i, auto lanes) MTL_LAMBDA { body(i, lanes, splat(1)); });
    return;
  }
  alignas(64) float buffer[kMaskBuffer];
  for (int64_t c = 0; c < cols; c += kMaskBlock) {
    const int64_t n = cols - c < kMaskBlock ? cols - c : kMaskBlock;
    const float* factors = mask_factors(*mask, first_element + static_cast<uint64_t>(c), n, buffer);
    each(n,
         [&](int64_t i, auto lanes) MTL_LAMBDA { body(c + i, lanes, load(factors + i, lanes)); });
  }
}

template <class T, bool kAddend, bool kResidual>
MTL_INLINE void add_row(const T* x, const T* addend, const T* residual, T* out, int64_t cols,
                        const Mask* mask, uint64_t first_element, float scale) {
  each_masked(cols, mask, first_element, [&](int64_t i, auto lanes, F factor) MTL_LAMBDA {
    F v = load(x + i, lanes);
    if constexpr (kAddend) v += load(addend + i, lanes);
    v *= factor * scale;
    if constexpr (kResidual) v += load(residual + i, lanes);
    store(out + i, v, lanes);
  });
}

template <class T>
void add_rows(const AddRows& args) {
  const int64_t cols = args.cols;
  for (int64_t r = 0; r < args.rows; ++r) {
    const T* x = static_cast<const T*>(args.x) + r * cols;
    const T* addend = static_cast<const T*>(args.addend);
    if (addend) addend += (args.row0 + r) % args.period * cols;
    const T* residual = static_cast<const T*>(args.residual);
    if (residual) residual += r * cols;
    T* out = static_cast<T*>(args.out) + r * cols;
    const uint64_t first = args.first_element + static_cast<uint64_t>(r * cols);
    if (addend && residual) {
      add_row<T, true, true>(x, addend, residual, out, cols, args.mask, first, args.scale);
    } else if (residual) {
      add_row<T, false, true>(x, addend, residual, out, cols, args.mask, first, args.scale);
    } else if (addend) {
      add_row<T, true, false>(x, addend, residual, out, cols, args.mask, first, args.scale);
    } else {
      add_row<T, false, false>(x, addend, residual, out, cols, args.mask, first, args.scale);
    }
  }
}

template <class T>
void position_backward(const PositionBackward& args) {
  const int64_t cols = args.cols;
  for (int64_t i0 = args.begin; i0 < args.end; ++i0) {
    float* dpositions = args.dpositions + (args.row0 + i0) % args.seq * cols;
    for (int64_t row = i0; row < args.rows; row += args.seq) {
      const int64_t first = row * cols;
      const T* dout = static_cast<const T*>(args.dout) + first;
      T* dx = static_cast<T*>(args.dx) + first;
      const bool add = row > i0 || args.accumulate;
      each_masked(cols, args.mask, args.first_element + static_cast<uint64_t>(first),
                  [&](int64_t i, auto lanes, F factor) MTL_LAMBDA {
                    const F d = load(dout + i, lanes) * factor;
                    store(dx + i, d, lanes);
                    store(dpositions + i, add ? load(dpositions + i, lanes) + d : d, lanes);
                  });
    }
  }
}

void copy_mask_factors(const Mask& mask, uint64_t first, int64_t n, float* factors) {
  each_masked(n, &mask, first, [&](int64_t i, auto lanes, F factor) MTL_LAMBDA {
    store(factors + i, factor, lanes);
  });
}

template <class T>
void add_typed(TypedKernels& table) {
  table.add_rows = add_rows<T>;
  table.position_backward = position_backward<T>;
}

}  // namespace

void add_position_kernels(VectorKernels& table) {
  add_typed<float>(table.f32);
  add_typed<uint16_t>(table.bf16);
  add_typed<_Float16>(table.f16);
  table.mask_factors = copy_mask_factors;
}

}  // namespace mtl::kernels::MTL_ISA
