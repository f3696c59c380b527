// What the tests of the emulated Hopper (runtime/device/cuda/warpgroup.h on the host) share: orders
// of threads, swizzled tiles, and sums of products in registers.
#pragma once

#include <cmath>
#include <cstddef>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/device/cuda/warpgroup.h"

namespace mtl::cuda::warpgroup_test {

using gpu_on_host::Schedule;
using gpu_on_host::ScheduleScope;

// What launching the kernel fails with; empty if it does not.
template <typename Kernel, typename... Arguments>
std::string failure_of(Kernel kernel, dim3 block, size_t shared, Arguments&&... arguments) {
  try {
    launch(kernel, dim3(1), block, shared, Stream{}, arguments...);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// Each order of threads, with late and with early copies.
template <typename Check>
void under_schedules(Check check) {
  for (const bool early : {false, true}) {
    for (const auto order : {Schedule::alternating, Schedule::first_ahead, Schedule::last_ahead,
                             Schedule::in_step, Schedule::random}) {
      for (unsigned seed = 1; seed <= (order == Schedule::random ? 3 : 1); ++seed) {
        CAPTURE(early);
        CAPTURE(order);
        CAPTURE(seed);
        const Schedule schedule = {order, early, seed};
        const ScheduleScope scope(schedule);
        check(schedule);
      }
    }
  }
}

template <typename T>
std::vector<T> numbers(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<T> all(count);
  for (T& x : all) x = from_float<T>(normal(random));
  return all;
}

// Where a panel's element lies, as warpgroup.h's head says.
inline size_t place(size_t panel, size_t row, size_t column) {
  const size_t swizzle = panel == 64 ? row % 8 : row / 2 % 4;
  return row * panel + ((column / 8) ^ swizzle) * 8 + column % 8;
}
// And a tile's of `rows` rows.
inline size_t place(size_t panel, size_t rows, size_t row, size_t column) {
  return column / panel * rows * panel + place(panel, row, column % panel);
}

// Tiles in shared memory, as the copy engine would leave them.
template <typename T, int kPanel>
void fill(T* tile, const T* from, size_t rows, size_t columns) {
  for (size_t i = threadIdx.x; i < rows * columns; i += blockDim.x) {
    tile[place(kPanel, rows, i / columns, i % columns)] = from[i];
  }
  __syncthreads();
}

// What a product is added to, or what it has to overwrite.
template <int kN>
void begin_sums(float (&d)[kN][4], bool adds) {
  for (unsigned n = 0; n < kN; ++n) {
    for (unsigned i = 0; i < 4; ++i) d[n][i] = adds ? static_cast<float>(n + i) : NAN;
  }
}
template <int kN>
void write_sums(const float (&d)[kN][4], float* out) {
  const unsigned row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  for (unsigned n = 0; n < kN; ++n) {
    for (unsigned i = 0; i < 4; ++i) {
      out[(row + i / 2 * 8) * 8 * kN + 8 * n + threadIdx.x % 4 * 2 + i % 2] = d[n][i];
    }
  }
}

constexpr int kK = 64;

}  // namespace mtl::cuda::warpgroup_test
