// The activations of an MLP that stand alone: GELU (to compute it again), its exact form, SwiGLU
// and its siblings.
#include <cassert>
#include <limits>

#include "runtime/device/cpu/cpu_device.h"

namespace mtl {

namespace {

kernels::UnitTerms terms_of(const GatedUnit& unit) {
  const bool quick = unit.gate == GateForm::quick_gelu;
  return {.gelu = unit.gate == GateForm::gelu_tanh,
          .plain = !quick && unit.offset == 0 && unit.clamp == 0,
          .steep = quick ? 1.702f : 1.0f,
          .offset = unit.offset,
          .bound = unit.clamp > 0 ? unit.clamp : std::numeric_limits<float>::infinity()};
}

}  // namespace

void CpuDevice::gelu_forward(Tensor x, Tensor y) {
  assert(y.dtype == x.dtype && y.numel() == x.numel() && y.data != x.data);
  matmul_.gelu(x, y);
}

void CpuDevice::gelu_exact_forward(Tensor x, Tensor y) {
  assert(y.dtype == x.dtype && y.numel() == x.numel() && y.data != x.data);
  const int64_t element = bytes_of(x.dtype);
  const auto gelu = typed(x.dtype).gelu_exact_forward;
  split_rows(x.numel(), 1, [&](int64_t begin, int64_t end) {
    gelu(x.as<char>() + begin * element, y.as<char>() + begin * element, end - begin);
  });
}

void CpuDevice::gelu_exact_backward(Tensor dy, Tensor x, Tensor y) {
  assert(dy.dtype == x.dtype && dy.numel() == x.numel() && dy.data != x.data);
  assert(!y || (y.dtype == x.dtype && y.numel() == x.numel() && y.data != x.data));
  const int64_t element = bytes_of(x.dtype);
  const auto gelu = typed(x.dtype).gelu_exact_backward;
  split_rows(x.numel(), 1, [&](int64_t begin, int64_t end) {
    gelu(x.as<char>() + begin * element, dy.as<char>() + begin * element,
         y ? y.as<char>() + begin * element : nullptr, end - begin);
  });
}

void CpuDevice::swiglu_forward(const Swiglu& args) {
  const Tensor &x = args.x, &y = args.y;
  const int64_t rows = y.rows(), width = y.cols();
  assert(y.dtype == x.dtype && x.rows() == rows && x.cols() == 2 * width);
  const int64_t row_bytes = width * bytes_of(x.dtype);
  const kernels::UnitTerms unit = terms_of(args.unit);
  const auto swiglu = typed(x.dtype).swiglu_forward;
  split_rows(rows, width, [&](int64_t begin, int64_t end) {
    swiglu({.x = x.as<char>() + begin * 2 * row_bytes,
            .y = y.as<char>() + begin * row_bytes,
            .rows = end - begin,
            .width = width,
            .unit = unit});
  });
  raise_amax(args.amax, y);
}

void CpuDevice::swiglu_backward(const SwigluBackward& args) {
  const Tensor &dy = args.dy, &x = args.x, &dx = args.dx, &y = args.y;
  const RowWeights& weigh = args.rows;
  const int64_t rows = dy.rows(), width = dy.cols();
  assert(dy.dtype == x.dtype && x.rows() == rows && x.cols() == 2 * width);
  assert(dx.dtype == x.dtype && dx.numel() == x.numel() && dx.data != x.data);
  assert(!y || (y.dtype == x.dtype && y.numel() == dy.numel() && y.data != dy.data));
  assert(!weigh.weights || (weigh.index.dtype == DType::i32 && weigh.index.numel() == rows));
  const int64_t row_bytes = width * bytes_of(x.dtype);
  const kernels::UnitTerms unit = terms_of(args.unit);
  const auto swiglu = typed(x.dtype).swiglu_backward;
  split_rows(rows, width, [&](int64_t begin, int64_t end) {
    swiglu({.x = x.as<char>() + begin * 2 * row_bytes,
            .y = y ? y.as<char>() + begin * row_bytes : nullptr,
            .rows = end - begin,
            .width = width,
            .unit = unit,
            .dy = dy.as<char>() + begin * row_bytes,
            .dx = dx.as<char>() + begin * 2 * row_bytes,
            .index = weigh.weights ? weigh.index.as<const int32_t>() + begin : nullptr,
            .weights = weigh.weights.as<const float>(),
            .dweights = weigh.dweights.as<float>()});
  });
  raise_amax(args.amax, dx);
}

}  // namespace mtl
