// amax and quantize: what products in FP8 are given.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cassert>
#include <cstring>

#include "common/float8.h"
#include "runtime/device/cpu/cpu_device.h"

namespace mtl {

uint32_t CpuDevice::largest_bits(Tensor x) const {
  assert(is_compute_type(x.dtype));
  constexpr int64_t kPerShare = 4096;
  const auto largest_of = typed(x.dtype).largest_bits;
  std::atomic<uint32_t> largest = 0;
  split(x.numel(), kPerShare, [&](int64_t begin, int64_t end) {
    const uint32_t own = largest_of(x.as<char>() + begin * bytes_of(x.dtype), end - begin);
    uint32_t before = largest.load();
    while (before < own && !largest.compare_exchange_weak(before, own)) {
    }
  });
  return largest.load();
}

void CpuDevice::amax(Tensor x, Tensor out) {
  assert(out.dtype == DType::f32);
  *out.as<float>() = std::bit_cast<float>(largest_bits(x));
}

void CpuDevice::raise_amax(Tensor amax, Tensor written) const {
  if (!amax) return;
  assert(amax.dtype == DType::f32);
  const auto before = std::bit_cast<uint32_t>(*amax.as<float>());
  *amax.as<float>() = std::bit_cast<float>(std::max(before, largest_bits(written)));
}

// Tile by tile, so that both orientations come of one rounding.
void CpuDevice::quantize(const Quantize& args) {
  constexpr int64_t kTile = 64;
  const Tensor& any = args.y ? args.y : args.transposed;
  const int64_t rows = args.x.rows(), cols = args.x.cols();
  assert(is_compute_type(args.x.dtype) && is_float8(any.dtype));
  assert(!args.y || args.y.numel() == rows * cols);
  const int64_t length = args.transposed ? args.transposed.cols() : rows;
  assert(!args.transposed ||
         (args.transposed.dtype == any.dtype && length >= rows && args.transposed.rows() == cols));
  const bool e5m2 = any.dtype == DType::f8_e5m2;
  const auto round = e5m2 ? typed(args.x.dtype).to_e5m2 : typed(args.x.dtype).to_e4m3;
  const float amax = *args.amax.as<float>();
  const float scale = float8_scale(amax, e5m2 ? kLargestE5m2 : kLargestE4m3);
  const char* const x = args.x.as<const char>();
  const int64_t element = bytes_of(args.x.dtype);
  split((rows + kTile - 1) / kTile, 1, [&](int64_t begin, int64_t end) {
    uint8_t tile[kTile][kTile];
    for (int64_t first = begin * kTile; first < std::min(end * kTile, rows); first += kTile) {
      const int64_t height = std::min(kTile, rows - first);
      for (int64_t column = 0; column < cols; column += kTile) {
        const int64_t width = std::min(kTile, cols - column);
        for (int64_t i = 0; i < height; ++i) {
          const int64_t at = (first + i) * cols + column;
          round(x + at * element, width, scale, tile[i]);
          if (args.y) {
            std::memcpy(args.y.as<uint8_t>() + at, tile[i], static_cast<size_t>(width));
          }
        }
        if (!args.transposed) continue;
        for (int64_t j = 0; j < width; ++j) {
          uint8_t* const to = args.transposed.as<uint8_t>() + (column + j) * length + first;
          for (int64_t i = 0; i < height; ++i) to[i] = tile[i][j];
        }
      }
    }
  });
  for (int64_t j = 0; j < cols && length > rows; ++j) {
    std::memset(args.transposed.as<uint8_t>() + j * length + rows, 0,
                static_cast<size_t>(length - rows));
  }
  *args.inverse.as<float>() = float8_inverse(amax, scale);
}

}  // namespace mtl
