// The activations of an MLP that stand alone: GELU (to compute it again), its exact form, SwiGLU.
#include <cassert>

#include "runtime/device/cpu/cpu_device.h"

namespace mtl {

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

void CpuDevice::gelu_exact_backward(Tensor dy, Tensor x) {
  assert(dy.dtype == x.dtype && dy.numel() == x.numel() && dy.data != x.data);
  const int64_t element = bytes_of(x.dtype);
  const auto gelu = typed(x.dtype).gelu_exact_backward;
  split_rows(x.numel(), 1, [&](int64_t begin, int64_t end) {
    gelu(x.as<char>() + begin * element, dy.as<char>() + begin * element, end - begin);
  });
}

void CpuDevice::swiglu_forward(const Swiglu& args) {
  const Tensor &x = args.x, &y = args.y;
  const int64_t rows = y.rows(), width = y.cols();
  assert(y.dtype == x.dtype && x.rows() == rows && x.cols() == 2 * width);
  const int64_t row_bytes = width * bytes_of(x.dtype);
  const auto swiglu = typed(x.dtype).swiglu_forward;
  split_rows(rows, width, [&](int64_t begin, int64_t end) {
    swiglu({.x = x.as<char>() + begin * 2 * row_bytes,
            .dy = nullptr,
            .out = y.as<char>() + begin * row_bytes,
            .rows = end - begin,
            .width = width});
  });
  raise_amax(args.amax, y);
}

void CpuDevice::swiglu_backward(const SwigluBackward& args) {
  const Tensor &dy = args.dy, &x = args.x, &dx = args.dx;
  const int64_t rows = dy.rows(), width = dy.cols();
  assert(dy.dtype == x.dtype && x.rows() == rows && x.cols() == 2 * width);
  assert(dx.dtype == x.dtype && dx.numel() == x.numel() && dx.data != x.data);
  const int64_t row_bytes = width * bytes_of(x.dtype);
  const auto swiglu = typed(x.dtype).swiglu_backward;
  split_rows(rows, width, [&](int64_t begin, int64_t end) {
    swiglu({.x = x.as<char>() + begin * 2 * row_bytes,
            .dy = dy.as<char>() + begin * row_bytes,
            .out = dx.as<char>() + begin * 2 * row_bytes,
            .rows = end - begin,
            .width = width});
  });
  raise_amax(args.amax, dx);
}

}  // namespace mtl
