// fill, cast, scale, add, blend, normalize, the copies, all_finite and the gradient of a bias.
#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

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
  return is_compute_type(x.dtype);
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
  assert(from.dtype == DType::f32 || to.dtype == DType::f32);
  split(from.numel(), kGrain, [&](int64_t begin, int64_t end) {
    if (from.dtype == DType::f32) {
      typed(to.dtype).from_f32(from.as<float>() + begin, element(to, begin), end - begin);
    } else {
      typed(from.dtype).to_f32(element(from, begin), to.as<float>() + begin, end - begin);
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

void CpuDevice::blend(Tensor x, Tensor y, float of_x, float of_y) {
  assert(is_float(x) && x.dtype == y.dtype && x.numel() == y.numel());
  const auto blend_range = typed(x.dtype).blend;
  split(x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    blend_range(element(x, begin), element(y, begin), end - begin, of_x, of_y);
  });
}

void CpuDevice::normalize(Tensor x) {
  assert(is_float(x));
  const int64_t n = x.numel(), cells = (n + kGrain - 1) / kGrain;
  std::vector<double> sums(static_cast<size_t>(cells));
  split(cells, 1, [&](int64_t first, int64_t last) {
    std::array<float, kGrain> widened;
    for (int64_t cell = first; cell < last; ++cell) {
      const int64_t count = std::min(kGrain, n - cell * kGrain);
      const char* const values = element(x, cell * kGrain);
      if (x.dtype != DType::f32) typed(x.dtype).to_f32(values, widened.data(), count);
      kernels_.sum_squares(
          x.dtype == DType::f32 ? reinterpret_cast<const float*>(values) : widened.data(), count,
          &sums[static_cast<size_t>(cell)]);
    }
  });
  const double norm = std::sqrt(std::accumulate(sums.begin(), sums.end(), 0.0));
  scale(x, static_cast<float>(1 / std::max(norm, kLeastNorm)));
}

bool CpuDevice::all_finite(Tensor x) {
  assert(is_float(x));
  const auto all_finite_range = typed(x.dtype).all_finite;
  std::atomic<bool> finite = true;
  split(x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    constexpr int64_t kLook = 16 * kGrain;  // between two looks at what the others have found
    for (int64_t at = begin; at < end && finite.load(std::memory_order_relaxed); at += kLook) {
      if (!all_finite_range(element(x, at), std::min(kLook, end - at))) {
        finite.store(false, std::memory_order_relaxed);
      }
    }
  });
  return finite.load();
}

void CpuDevice::copy(Tensor from, Tensor to) {
  assert(from.dtype == to.dtype && from.numel() == to.numel());
  copy_from_host(to, from.data);
}

void CpuDevice::copy_columns(const CopyColumns& args) {
  const int64_t rows = args.from.rows(), bytes = args.columns * bytes_of(args.from.dtype);
  assert(args.from.dtype == args.to.dtype && args.to.rows() == rows);
  assert(args.from_column >= 0 && args.from_column + args.columns <= args.from.cols());
  assert(args.to_column >= 0 && args.to_column + args.columns <= args.to.cols());
  split_rows(rows, args.columns, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      std::memcpy(args.to.at(row, args.to_column), args.from.at(row, args.from_column),
                  static_cast<size_t>(bytes));
    }
  });
}

void CpuDevice::regroup_columns(const ColumnBlocks& args) {
  const int64_t n = args.rows.rows(), cols = args.rows.cols(), width = args.blocks.cols();
  const int64_t bytes = bytes_of(args.rows.dtype);
  assert(args.blocks.dtype == args.rows.dtype && args.blocks.rows() == args.parts * n);
  const auto to_f32 = typed(args.rows.dtype).to_f32;
  const auto from_f32 = typed(args.rows.dtype).from_f32;
  split_rows(n, cols, [&](int64_t begin, int64_t end) {
    std::vector<float> sum, part_of_sum;
    for (int64_t row = begin; row < end; ++row) {
      int64_t first = 0, in_block = 0;  // columns of the section
      for (const ColumnSection& section : args.sections) {
        const int64_t piece = section.width(), copies = args.parts / section.pieces;
        const auto width_bytes = static_cast<size_t>(piece * bytes);
        for (int64_t which = 0; which < section.pieces && piece > 0; ++which) {
          char* in_rows = args.rows.as<char>() + (row * cols + first + which * piece) * bytes;
          const auto block = [&](int64_t copy) {
            const int64_t part = which * copies + copy;
            return args.blocks.as<char>() + ((part * n + row) * width + in_block) * bytes;
          };
          if (!args.to_rows) {
            for (int64_t i = 0; i < copies; ++i) std::memcpy(block(i), in_rows, width_bytes);
          } else if (copies == 1) {
            std::memcpy(in_rows, block(0), width_bytes);
          } else {
            sum.assign(static_cast<size_t>(piece), 0.0f);
            part_of_sum.resize(static_cast<size_t>(piece));
            for (int64_t i = 0; i < copies; ++i) {
              to_f32(block(i), part_of_sum.data(), piece);
              for (size_t c = 0; c < sum.size(); ++c) sum[c] += part_of_sum[c];
            }
            from_f32(sum.data(), in_rows, piece);
          }
        }
        first += section.columns;
        in_block += piece;
      }
      assert(first == cols && in_block == width);
    }
  });
}

void CpuDevice::sum_rows(Tensor rows, Tensor sum, bool accumulate) {
  assert(is_float(rows) && sum.dtype == DType::f32 && sum.numel() == rows.cols());
  const int64_t cols = rows.cols();
  const auto add_to = typed(rows.dtype).add_to_f32;
  split(cols, kGrain, [&](int64_t begin, int64_t end) {
    // So many that the sums stay in the cache while rows come.
    constexpr int64_t kAtOnce = 2048;
    for (int64_t c = begin; c < end; c += kAtOnce) {
      const int64_t count = std::min(kAtOnce, end - c);
      float* const to = sum.as<float>() + c;
      if (!accumulate) typed(DType::f32).fill(to, count, 0);
      for (int64_t r = 0; r < rows.rows(); ++r) add_to(element(rows, r * cols + c), to, count);
    }
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
