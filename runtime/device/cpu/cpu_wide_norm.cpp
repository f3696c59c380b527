// RMS normalisation of columns of a row as one vector, of which other ranks may have a part
// (OLMo 2's QK-norm).
#include <cassert>

#include "runtime/device/cpu/cpu_device.h"

namespace mtl {

namespace {

// What all but the squares have in common; `x` holds the columns that are overwritten.
template <class Args>
[[maybe_unused]] bool columns_fit(const Args& args, const Tensor& x) {
  const int64_t rows = x.rows(), end = args.first_column + args.columns;
  return args.first_column >= 0 && end <= x.cols() && end <= args.raw.cols() &&
         args.raw.rows() == rows && args.raw.dtype == x.dtype && args.gamma.dtype == x.dtype &&
         args.gamma.numel() == args.columns && args.squares.dtype == DType::f32 &&
         args.squares.numel() == rows;
}
[[maybe_unused]] bool products_fit(const WideNormBackward& args) {
  return args.products.dtype == DType::f32 && args.products.numel() == args.dx.rows();
}

// Of `count` rows from row `first`; dgamma is the caller's.
kernels::WideNormRowsBackward wide_rows(const WideNormBackward& args, int64_t first,
                                        int64_t count) {
  return {.dx = args.dx.at(first, args.first_column),
          .raw = args.raw.at(first, args.first_column),
          .gamma = args.gamma.data,
          .squares = args.squares.as<const float>() + first,
          .products = args.products.as<float>() + first,
          .dgamma = nullptr,
          .rows = count,
          .stride = args.dx.cols(),
          .raw_stride = args.raw.cols(),
          .columns = args.columns,
          .inverse = args.inverse,
          .eps = args.eps};
}

}  // namespace

void CpuDevice::wide_norm_squares(const WideNorm& args) {
  assert(args.first_column >= 0 && args.first_column + args.columns <= args.x.cols());
  assert(args.squares.dtype == DType::f32 && args.squares.numel() == args.x.rows());
  const auto square_rows = typed(args.x.dtype).wide_norm_squares;
  split_rows(args.x.rows(), args.columns, [&](int64_t begin, int64_t end) {
    square_rows({.x = args.x.at(begin, args.first_column),
                 .raw = nullptr,
                 .gamma = nullptr,
                 .squares = args.squares.as<float>() + begin,
                 .rows = end - begin,
                 .stride = args.x.cols(),
                 .raw_stride = 0,
                 .columns = args.columns,
                 .inverse = args.inverse,
                 .eps = args.eps});
  });
}

void CpuDevice::wide_norm_forward(const WideNorm& args) {
  assert(columns_fit(args, args.x));
  const auto norm_rows = typed(args.x.dtype).wide_norm_forward;
  split_rows(args.x.rows(), args.columns, [&](int64_t begin, int64_t end) {
    norm_rows({.x = args.x.at(begin, args.first_column),
               .raw = args.raw.at(begin, args.first_column),
               .gamma = args.gamma.data,
               .squares = args.squares.as<float>() + begin,
               .rows = end - begin,
               .stride = args.x.cols(),
               .raw_stride = args.raw.cols(),
               .columns = args.columns,
               .inverse = args.inverse,
               .eps = args.eps});
  });
}

void CpuDevice::wide_norm_products(const WideNormBackward& args) {
  assert(columns_fit(args, args.dx) && products_fit(args));
  const auto multiply_rows = typed(args.dx.dtype).wide_norm_products;
  split_rows(args.dx.rows(), args.columns, [&](int64_t begin, int64_t end) {
    multiply_rows(wide_rows(args, begin, end - begin));
  });
}

// The sums for gamma as in layernorm_backward: fixed chunks of rows, then the chunks in order.
void CpuDevice::wide_norm_backward(const WideNormBackward& args) {
  assert(columns_fit(args, args.dx) && products_fit(args));
  assert(!args.dgamma || (args.dgamma.dtype == DType::f32 && args.dgamma.numel() == args.columns));
  const int64_t rows = args.dx.rows(), columns = args.columns;
  const RowChunks chunks(rows);
  float* partials = workspace(chunks.count * columns);
  const auto norm_backward = typed(args.dx.dtype).wide_norm_backward;
  split(chunks.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i * chunks.rows;
      kernels::WideNormRowsBackward chunk =
          wide_rows(args, first, std::min(chunks.rows, rows - first));
      chunk.dgamma = partials + i * columns;
      norm_backward(chunk);
    }
  });
  if (!args.dgamma) return;
  kernels_.combine(partials, chunks.count, columns, columns, args.dgamma.as<float>(),
                   args.accumulate);
}

}  // namespace mtl
