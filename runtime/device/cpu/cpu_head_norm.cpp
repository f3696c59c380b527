// RMS normalisation of each head's vector (QK-norm).
#include <cassert>

#include "runtime/device/cpu/cpu_device.h"

namespace mtl {

namespace {

// What forward and backward have in common; `x` holds the columns that are overwritten.
template <class Args>
[[maybe_unused]] bool fits(const Args& args, const Tensor& x) {
  const int64_t rows = x.rows(), end = args.first_column + args.heads * args.head_dim;
  return args.first_column >= 0 && end <= x.cols() && end <= args.raw.cols() &&
         args.raw.rows() == rows && args.raw.dtype == x.dtype && args.gamma.dtype == x.dtype &&
         args.gamma.numel() == args.head_dim && args.rstd.dtype == DType::f32 &&
         args.rstd.numel() == rows * args.heads;
}

}  // namespace

void CpuDevice::head_norm_forward(const HeadNorm& args) {
  assert(fits(args, args.x));
  const auto norm_rows = typed(args.x.dtype).head_norm_forward;
  split_rows(args.x.rows(), args.heads * args.head_dim, [&](int64_t begin, int64_t end) {
    norm_rows({.x = args.x.at(begin, args.first_column),
               .raw = args.raw.at(begin, args.first_column),
               .gamma = args.gamma.data,
               .rstd = args.rstd.as<float>() + begin * args.heads,
               .rows = end - begin,
               .stride = args.x.cols(),
               .raw_stride = args.raw.cols(),
               .heads = args.heads,
               .dim = args.head_dim,
               .eps = args.eps});
  });
}

// The sums for gamma as in layernorm_backward: fixed chunks of rows, then the chunks in order.
void CpuDevice::head_norm_backward(const HeadNormBackward& args) {
  assert(fits(args, args.dx));
  assert(!args.dgamma || (args.dgamma.dtype == DType::f32 && args.dgamma.numel() == args.head_dim));
  const int64_t rows = args.dx.rows(), dim = args.head_dim;
  const RowChunks chunks(rows);
  float* partials = workspace(chunks.count * dim);
  const auto norm_backward = typed(args.dx.dtype).head_norm_backward;
  split(chunks.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i * chunks.rows;
      norm_backward({.dx = args.dx.at(first, args.first_column),
                     .raw = args.raw.at(first, args.first_column),
                     .gamma = args.gamma.data,
                     .rstd = args.rstd.as<float>() + first * args.heads,
                     .dgamma = partials + i * dim,
                     .rows = std::min(chunks.rows, rows - first),
                     .stride = args.dx.cols(),
                     .raw_stride = args.raw.cols(),
                     .heads = args.heads,
                     .dim = dim});
    }
  });
  if (!args.dgamma) return;
  kernels_.combine(partials, chunks.count, dim, dim, args.dgamma.as<float>(), args.accumulate);
}

}  // namespace mtl
