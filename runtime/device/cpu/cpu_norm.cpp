// Layer and RMS normalisation over rows.
#include <cassert>

#include "runtime/device/cpu/cpu_device.h"

namespace mtl {

void CpuDevice::layernorm_forward(const LayerNorm& args) {
  const Tensor& x = args.x;
  const int64_t rows = x.rows(), cols = x.cols();
  assert(args.y.dtype == x.dtype && args.y.numel() == x.numel());
  assert(args.gamma.dtype == x.dtype && args.gamma.numel() == cols);
  assert(!args.beta || (args.beta.dtype == x.dtype && args.beta.numel() == cols));
  assert(!args.mean || (args.mean.dtype == DType::f32 && args.mean.numel() == rows));
  assert(args.rstd.dtype == DType::f32 && args.rstd.numel() == rows);
  const int64_t row_bytes = cols * bytes_of(x.dtype);
  const auto& loops = typed(x.dtype);
  const auto norm_forward = args.mean ? loops.norm_forward : loops.rms_norm_forward;
  split_rows(rows, cols, [&](int64_t begin, int64_t end) {
    norm_forward({.x = x.as<char>() + begin * row_bytes,
                  .gamma = args.gamma.data,
                  .beta = args.beta.data,
                  .y = args.y.as<char>() + begin * row_bytes,
                  .mean = args.mean ? args.mean.as<float>() + begin : nullptr,
                  .rstd = args.rstd.as<float>() + begin,
                  .rows = end - begin,
                  .cols = cols,
                  .eps = args.eps});
  });
  raise_amax(args.amax, args.y);
}

void CpuDevice::layernorm_backward(const LayerNormBackward& args) {
  const Tensor& x = args.x;
  const int64_t rows = x.rows(), cols = x.cols();
  assert(args.dy.dtype == x.dtype && args.dy.numel() == x.numel());
  assert(args.dx.dtype == x.dtype && args.dx.numel() == x.numel());
  assert(args.gamma.dtype == x.dtype && args.gamma.numel() == cols);
  assert(!args.mean || (args.mean.dtype == DType::f32 && args.mean.numel() == rows));
  assert(args.rstd.dtype == DType::f32 && args.rstd.numel() == rows);
  assert(!args.dgamma || (args.dgamma.dtype == DType::f32 && args.dgamma.numel() == cols));
  assert(!args.dbeta || (args.dbeta.dtype == DType::f32 && args.dbeta.numel() == cols));
  const int64_t row_bytes = cols * bytes_of(x.dtype);
  // Per chunk of rows: the sums for gamma, then those for beta.
  const RowChunks chunks(rows);
  const int64_t stride = 2 * cols;
  float* partials = workspace(chunks.count * stride);
  const auto& loops = typed(x.dtype);
  const auto norm_backward = args.mean ? loops.norm_backward : loops.rms_norm_backward;
  split(chunks.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i * chunks.rows;
      float* sums = partials + i * stride;
      norm_backward({.dy = args.dy.as<char>() + first * row_bytes,
                     .x = x.as<char>() + first * row_bytes,
                     .gamma = args.gamma.data,
                     .mean = args.mean ? args.mean.as<float>() + first : nullptr,
                     .rstd = args.rstd.as<float>() + first,
                     .dx = args.dx.as<char>() + first * row_bytes,
                     .dgamma = sums,
                     .dbeta = args.dbeta ? sums + cols : nullptr,
                     .rows = std::min(chunks.rows, rows - first),
                     .cols = cols,
                     .add_to_dx = args.add_to_dx});
    }
  });
  const auto add_up = [&](int64_t begin, int64_t end) {
    kernels_.combine(partials + begin, chunks.count, stride, end - begin,
                     args.dgamma.as<float>() + begin, args.accumulate);
    if (args.dbeta) {
      kernels_.combine(partials + cols + begin, chunks.count, stride, end - begin,
                       args.dbeta.as<float>() + begin, args.accumulate);
    }
  };
  if (args.dgamma) split(cols, 64, add_up);
  raise_amax(args.amax, args.dx);
}

}  // namespace mtl
