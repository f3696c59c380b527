// fill, cast, scale, add and the gradient of a bias.
#include <cassert>
#include <cstring>

#include "runtime/device/cpu/cpu_device.h"

namespace mtl {

namespace {

// Shares are multiples of 4096 elements, so that every thread's vectors start where a single
// thread's would.
constexpr int64_t kGrain = 4096;

char* element(const Tensor& x, int64_t i) {
  return x.as<char>() + i * bytes_of(x.dtype);
}

[[maybe_unused]] bool is_float(const Tensor& x) {
  return x.dtype == DType::f32 || x.dtype == DType::bf16;
}

}  // namespace

void CpuDevice::fill(Tensor x, float value) {
  assert(is_float(x));
  const auto fill_range = typed(x.dtype).fill;
  split(x.numel(), kGrain,
        [&](int64_t begin, int64_t end) { fill_range(element(x, begin), end - begin, value); });
}

void CpuDevice::cast(Tensor from, Tensor to) {
  assert(is_float(from) && is_float(to) && from.numel() == to.numel());
  if (from.dtype == to.dtype) {
    copy_from_host(to, from.data);
    return;
  }
  split(from.numel(), kGrain, [&](int64_t begin, int64_t end) {
    if (to.dtype == DType::bf16) {
      kernels_.to_bf16(from.as<float>() + begin, to.as<uint16_t>() + begin, end - begin);
    } else {
      kernels_.to_f32(from.as<uint16_t>() + begin, to.as<float>() + begin, end - begin);
    }
  });
}

void CpuDevice::scale(Tensor x, float factor) {
  assert(is_float(x));
  const auto scale_range = typed(x.dtype).scale;
  split(x.numel(), kGrain,
        [&](int64_t begin, int64_t end) { scale_range(element(x, begin), end - begin, factor); });
}

void CpuDevice::add(Tensor x, Tensor y) {
  assert(is_float(x) && x.dtype == y.dtype && x.numel() == y.numel());
  const auto add_range = typed(x.dtype).add;
  split(x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    add_range(element(x, begin), element(y, begin), end - begin);
  });
}

// Chunks of rows whose number depends on the row count alone are summed in f32, then the chunks in
// order in f64.
void CpuDevice::bias_grad(Tensor dy, Tensor db, bool accumulate) {
  assert(is_float(dy) && db.dtype == DType::f32 && db.numel() == dy.cols());
  const int64_t rows = dy.rows(), cols = dy.cols();
  const RowChunks chunks(rows);
  float* partials = workspace(chunks.count * cols);
  const auto column_sums = typed(dy.dtype).column_sums;
  split(chunks.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i * chunks.rows;
      column_sums(element(dy, first * cols), std::min(chunks.rows, rows - first), cols,
                  partials + i * cols);
    }
  });
  split(cols, 64, [&](int64_t begin, int64_t end) {
    kernels_.combine(partials + begin, chunks.count, cols, end - begin, db.as<float>() + begin,
                     accumulate);
  });
}

}  // namespace mtl
