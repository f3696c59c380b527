// What a device reaches with large square products and long copies: the limits that the parts of a
// step are held against.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>
#include <vector>

#include "op_work.h"
#include "runtime/device/device.h"
#include "runtime/plan/forecast/gpus.h"

namespace mtl::bench {

// A GPU that is not at hand: of its data sheet, what is reached of it in practice.
inline DeviceRates rates_of(const GpuModel& gpu) {
  constexpr double kProducts = 0.80, kCopies = 0.90;
  return {kProducts * gpu.bf16, kProducts * gpu.fp8, kCopies * gpu.memory_rate};
}

// Takes about a second. Random operands: a GPU multiplies zeros faster, for they cost less power.
// `size`: of the product's sides.
inline DeviceRates measured_rates(Device& device, int64_t size) {
  const int64_t numel = size * size;
  const size_t bytes = 4 * static_cast<size_t>(numel);  // room for f32
  char* const memory = static_cast<char*>(device.allocate(4 * bytes + 4096));
  const auto matrix = [&](size_t i, DType type) {
    return Tensor(memory + i * bytes, type, {size, size});
  };
  const Tensor one(memory + 4 * bytes, DType::f32, {1});
  const Tensor inverse(memory + 4 * bytes + 256, DType::f32, {1});
  std::vector<float> values(static_cast<size_t>(numel));
  std::mt19937 random(1);
  std::uniform_real_distribution<float> spread(-1, 1);
  for (float& value : values) value = spread(random);
  for (const size_t i : {0, 1}) {
    device.copy_from_host(matrix(3, DType::f32), values.data());
    device.cast(matrix(3, DType::f32), matrix(i, DType::bf16));
  }
  device.fill(one, 1);

  // The best of several; ops in a row, so that starting them and waiting counts little.
  const auto seconds = [&](const auto& op) {
    using Clock = std::chrono::steady_clock;
    constexpr int kInARow = 8;
    double best = 1e9;
    for (int i = 0; i < 12; ++i) {
      const auto start = Clock::now();
      for (int repeat = 0; repeat < kInARow; ++repeat) op();
      device.synchronize();
      const std::chrono::duration<double> taken = Clock::now() - start;
      if (i >= 2) best = std::min(best, taken.count() / kInARow);
    }
    return best;
  };
  const double flops = 2.0 * static_cast<double>(numel) * static_cast<double>(size);
  DeviceRates rates;
  Matmul product{.a = matrix(0, DType::bf16),
                 .b = matrix(1, DType::bf16),
                 .c = matrix(2, DType::bf16),
                 .transpose_b = true};
  rates.flops = flops / seconds([&] { device.matmul(product); });
  rates.memory = 2.0 * static_cast<double>(bytes) /
                 seconds([&] { device.copy(matrix(2, DType::f32), matrix(3, DType::f32)); });
  if (device.has_float8()) {
    product.a = matrix(2, DType::f8_e4m3);
    product.b = matrix(3, DType::f8_e4m3);
    product.scale_a = product.scale_b = inverse;
    for (const size_t i : {0, 1}) {
      device.quantize({.x = matrix(i, DType::bf16),
                       .amax = one,
                       .y = matrix(i + 2, DType::f8_e4m3),
                       .transposed = {},
                       .inverse = inverse});
    }
    product.c = matrix(0, DType::bf16);
    rates.fp8_flops = flops / seconds([&] { device.matmul(product); });
  }
  device.free(memory);
  return rates;
}

}  // namespace mtl::bench
