// What the emulator has of Hopper (runtime/device/cuda/warpgroup.h): that copies and products are
// what the PTX manual says, and that kernels which a GPU would hang on, or which read, overwrite or
// release too early, are found.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/device/cuda/warpgroup.h"

namespace mtl::cuda {

namespace {

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
size_t place(size_t panel, size_t row, size_t column) {
  const size_t swizzle = panel == 64 ? row % 8 : row / 2 % 4;
  return row * panel + ((column / 8) ^ swizzle) * 8 + column % 8;
}
// And a tile's of `rows` rows.
size_t place(size_t panel, size_t rows, size_t row, size_t column) {
  return column / panel * rows * panel + place(panel, row, column % panel);
}

// --- copies

struct BoxAt {
  int column, head, row, sequence;
};

void box_kernel(const TensorMap map, BoxAt at, unsigned bytes, unsigned char* out) {
  MTL_DYNAMIC_SHARED(memory);
  Barrier& full = *reinterpret_cast<Barrier*>(memory + bytes);
  if (threadIdx.x == 0) {
    init(full, 1);
    barriers_made();
    arrive_expecting(full, bytes);
    copy_box(memory, map, full, at.column, at.head, at.row, at.sequence);
  }
  __syncthreads();
  wait(full, 0);
  for (unsigned i = threadIdx.x; i < bytes; i += blockDim.x) out[i] = memory[i];
}

void check_box(const HeadsTensor& tensor, BoxAt at) {
  const auto rows = static_cast<size_t>(tensor.rows), panel = static_cast<size_t>(tensor.panel);
  std::vector<uint16_t> expected(rows * panel), got(rows * panel);
  for (int r = 0; r < tensor.rows; ++r) {
    for (int c = 0; c < tensor.panel; ++c) {
      const int64_t row = at.row + r, column = at.column + c;
      const bool inside = row >= 0 && row < tensor.seq && column >= 0 && column < tensor.dim &&
                          at.head < tensor.heads && at.sequence < tensor.batch;
      const int64_t element =
          (at.sequence * tensor.seq + row) * tensor.row_stride + at.head * tensor.dim + column;
      expected[place(panel, static_cast<size_t>(r), static_cast<size_t>(c))] =
          inside ? static_cast<const uint16_t*>(tensor.data)[element] : uint16_t{0};
    }
  }
  const auto bytes = static_cast<unsigned>(2 * rows * panel);
  launch(box_kernel, dim3(1), dim3(64), bytes + sizeof(Barrier), Stream{}, tensor_map(tensor), at,
         bytes, reinterpret_cast<unsigned char*>(got.data()));
  CHECK(got == expected);
}

void bytes_kernel(const float* from, float* out, unsigned count, bool waits) {
  MTL_DYNAMIC_SHARED(memory);
  Barrier& full = *reinterpret_cast<Barrier*>(memory);
  auto* const shared = reinterpret_cast<float*>(memory + 16);
  if (threadIdx.x == 0) {
    init(full, 1);
    barriers_made();
    arrive_expecting(full, count * sizeof(float));
    copy_bytes(shared, from, count / 2 * sizeof(float), full);
    copy_bytes(shared + count / 2, from + count / 2, count / 2 * sizeof(float), full);
  }
  __syncthreads();
  if (waits) wait(full, 0);
  out[threadIdx.x] = shared[threadIdx.x];
  wait(full, 0);
}

// Registers to tiles whose rows are `apart` bytes from each other, and back.
void tiles_kernel(unsigned apart, uint32_t* out) {
  MTL_DYNAMIC_SHARED(memory);
  unsigned char* const row = memory + threadIdx.x * apart;
  const unsigned first = 1000 * threadIdx.x;
  const uint32_t four[4] = {first, first + 1, first + 2, first + 3};
  store_tiles(row, four);
  uint32_t again[4];
  load_tiles<false>(again, row);
  for (unsigned r = 0; r < 4; ++r) {
    const bool same = again[r] == four[r];
    // Row lane / 4 of tile r is that of lane 8 r + lane / 4.
    const unsigned char* const element =
        memory + (8 * r + threadIdx.x / 4) * apart + threadIdx.x % 4 * 4;
    out[4 * threadIdx.x + r] = same && *reinterpret_cast<const uint32_t*>(element) == four[r];
  }
}

// --- products

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
// Of which operands a product is.
enum class Kind { rows, registers, columns };

// out[128, 8 kN] = a[128, 64] b[8 kN, 64]^T + out, by two warpgroups.
template <typename T, int kPanel, int kN>
void shared_kernel(const T* a, const T* b, float* out, bool adds, int wrong_by) {
  MTL_DYNAMIC_SHARED(memory);
  T* const left = reinterpret_cast<T*>(memory);
  T* const right = left + 128 * kK;
  fill<T, kPanel>(left, a, 128, kK);
  fill<T, kPanel>(right, b, 8 * kN, kK);
  float d[kN][4];
  begin_sums(d, adds);
  products_begin();
  for (unsigned k = 0; k < kK; k += 16) {
    const unsigned panel = k / kPanel, column = k % kPanel;
    const uint64_t rows = rows_operand<kPanel>(
        shared_address(left + (panel * 128 + threadIdx.x / kWarpgroup * 64) * kPanel + column));
    const uint64_t columns =
        rows_operand<kPanel>(shared_address(right + panel * 8 * kN * kPanel + column)) +
        (static_cast<uint64_t>(wrong_by) << 32);
    multiply_shared<T>(d, rows, columns, adds || k > 0);
  }
  products_issued();
  products_wait<0>();
  write_sums(d, out);
}

// out[128, 8 kN] = a[128, 64] b[64, 8 kN], each of b's rows in `panels` panels.
template <typename T, int kPanel, int kN>
void registers_kernel(const T* a, const T* b, float* out, bool adds, int wrong_by) {
  constexpr size_t kColumns = (8 * kN + kPanel - 1) / kPanel * kPanel;
  MTL_DYNAMIC_SHARED(memory);
  T* const right = reinterpret_cast<T*>(memory);
  fill<T, kPanel>(right, b, kK, kColumns);
  float d[kN][4];
  begin_sums(d, adds);
  products_begin();
  for (unsigned k = 0; k < kK; k += 16) {
    uint32_t left[4];
    const unsigned row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    for (unsigned i = 0; i < 4; ++i) {
      const T* const two = a + (row + i % 2 * 8) * kK + k + i / 2 * 8 + threadIdx.x % 4 * 2;
      left[i] = two[0].bits | static_cast<uint32_t>(two[1].bits) << 16;
    }
    const uint64_t columns =
        columns_operand<kPanel>(shared_address(right + k * kPanel), kK * kPanel * 2) +
        (static_cast<uint64_t>(wrong_by) << 32);
    multiply_registers<T>(d, left, columns, adds || k > 0);
    products_issued();  // a group each
  }
  products_wait<2>();
  products_wait<0>();
  write_sums(d, out);
}

// out[128, 8 kN] = a[64, 128]^T b[64, 8 kN].
template <typename T, int kPanel, int kN>
void columns_kernel(const T* a, const T* b, float* out, bool adds, int wrong_by) {
  constexpr size_t kColumns = (8 * kN + kPanel - 1) / kPanel * kPanel;
  MTL_DYNAMIC_SHARED(memory);
  T* const left = reinterpret_cast<T*>(memory);
  T* const right = left + 128 * kK;
  fill<T, kPanel>(left, a, kK, 128);
  fill<T, kPanel>(right, b, kK, kColumns);
  float d[kN][4];
  begin_sums(d, adds);
  products_begin();
  for (unsigned k = 0; k < kK; k += 16) {
    const unsigned panel = threadIdx.x / kWarpgroup * (64 / kPanel);
    const uint64_t rows =
        columns_operand<kPanel>(shared_address(left + (panel * kK + k) * kPanel), kK * kPanel * 2);
    const uint64_t columns =
        columns_operand<kPanel>(shared_address(right + k * kPanel), kK * kPanel * 2) +
        (static_cast<uint64_t>(wrong_by) << 32);
    multiply_columns<T>(d, rows, columns, adds || k > 0);
  }
  products_issued();
  products_wait<0>();
  write_sums(d, out);
}

template <typename T, int kPanel, int kN>
void check_products(bool adds) {
  CAPTURE(kPanel);
  CAPTURE(kN);
  CAPTURE(adds);
  constexpr size_t n = 8 * kN, wide = (n + kPanel - 1) / kPanel * kPanel;
  const auto a = numbers<T>(128 * kK, 1), b = numbers<T>(wide * kK, 2);
  for (const Kind kind : {Kind::rows, Kind::registers, Kind::columns}) {
    CAPTURE(static_cast<int>(kind));
    for (const int wrong_by : {0, 8}) {
      std::vector<float> out(128 * n);
      if (kind == Kind::registers) {
        launch(registers_kernel<T, kPanel, kN>, dim3(1), dim3(256), 2 * wide * kK + 1024, Stream{},
               a.data(), b.data(), out.data(), adds, wrong_by);
      } else if (kind == Kind::columns) {
        launch(columns_kernel<T, kPanel, kN>, dim3(1), dim3(256), 2 * (128 + wide) * kK + 1024 * kN,
               Stream{}, a.data(), b.data(), out.data(), adds, wrong_by);
      } else {
        launch(shared_kernel<T, kPanel, kN>, dim3(1), dim3(256), 2 * (128 + n) * kK + 1024 * kN,
               Stream{}, a.data(), b.data(), out.data(), adds, wrong_by);
      }
      size_t wrong = 0;
      for (size_t i = 0; i < 128; ++i) {
        for (size_t j = 0; j < n; ++j) {
          double sum = adds ? static_cast<double>(j / 8 + j % 2 + i / 8 % 2 * 2) : 0;
          for (size_t k = 0; k < kK; ++k) {
            const T left = a[kind == Kind::columns ? k * 128 + i : i * kK + k];
            const T right = b[kind == Kind::rows ? j * kK + k : k * wide + j];
            sum += static_cast<double>(to_float(left)) * static_cast<double>(to_float(right));
          }
          wrong += !(std::abs(out[i * n + j] - sum) < 1e-4);
        }
      }
      if (wrong_by == 0) {
        CHECK(wrong == 0);
      } else {
        CHECK(wrong > 0);
      }
    }
  }
}

// The first sum of a product with itself of what is copied, perhaps before it has come.
void product_of_copy_kernel(const Half* from, float* out, bool waits) {
  MTL_DYNAMIC_SHARED(memory);
  Barrier& full = *reinterpret_cast<Barrier*>(memory + 8192);
  if (threadIdx.x == 0) {
    init(full, 1);
    barriers_made();
    arrive_expecting(full, 8192);
    copy_bytes(memory, from, 8192, full);
  }
  __syncthreads();
  if (waits) wait(full, 0);
  const uint64_t rows = rows_operand<64>(shared_address(memory));
  float d[8][4];
  products_begin();
  multiply_shared<Half>(d, rows, rows, false);
  products_issued();
  products_wait<0>();
  if (threadIdx.x == 0) *out = d[0][0];
  wait(full, 0);
}

// --- a kernel as they are: one thread copies, two warpgroups multiply, two stages between them

enum class Mistake {
  none,
  late_wait_for_full,  // of the last tile, behind its product
  no_wait_for_empty,   // before the last tile
  early_release,
  sums_before_wait,
  few_bytes,
  few_bytes_by_a_panel,
  many_bytes,
  no_release,
};

constexpr int kTiles = 5, kRowsOfTile = 64;
constexpr unsigned kLeftBytes = 2 * 128 * kK, kTileBytes = 2 * kRowsOfTile * kK;
struct Barriers {
  Barrier left, full[2], empty[2];
};

// out[128, 64] = the sum over tiles of a[128, 64] b[tile]^T.
template <int kPanel>
void pipeline_kernel(const TensorMap a, const TensorMap b, float* out, Mistake mistake) {
  MTL_DYNAMIC_SHARED(memory);
  const auto tile = [&](int stage) {
    return memory + kLeftBytes + static_cast<unsigned>(stage) * kTileBytes;
  };
  auto& barriers = *reinterpret_cast<Barriers*>(tile(2));
  if (threadIdx.x == 0) {
    init(barriers.left, 1);
    for (Barrier& full : barriers.full) init(full, 1);
    for (Barrier& empty : barriers.empty) init(empty, 2);
    barriers_made();
  }
  __syncthreads();
  if (threadIdx.x >= 2 * kWarpgroup) {
    if (threadIdx.x % 32 != 0) return;
    arrive_expecting(barriers.left, kLeftBytes);
    for (int p = 0; p < kK / kPanel; ++p) {
      copy_box(memory + 128 * p * kPanel * 2, a, barriers.left, p * kPanel, 0, 0, 0);
    }
    for (int t = 0; t < kTiles; ++t) {
      const int stage = t % 2;
      if (mistake != Mistake::no_wait_for_empty || t < kTiles - 1)
        wait(barriers.empty[stage], t / 2 % 2 == 0);
      arrive_expecting(barriers.full[stage], mistake == Mistake::few_bytes ? kTileBytes - 16
                                             : mistake == Mistake::few_bytes_by_a_panel
                                                 ? kTileBytes / (kK / kPanel)
                                             : mistake == Mistake::many_bytes ? kTileBytes + 16
                                                                              : kTileBytes);
      for (int p = 0; p < kK / kPanel; ++p) {
        copy_box(tile(stage) + kRowsOfTile * p * kPanel * 2, b, barriers.full[stage], p * kPanel, 0,
                 t * kRowsOfTile, 0);
      }
    }
    return;
  }
  const auto release = [&](int t) {
    if (mistake != Mistake::no_release && threadIdx.x % kWarpgroup == 0) {
      arrive(barriers.empty[t % 2]);
    }
  };
  const auto wait_for_full = [&](int t) {
    wait(barriers.full[t % 2], static_cast<unsigned>(t / 2 % 2));
  };
  float d[8][4];
  wait(barriers.left, 0);
  for (int t = 0; t < kTiles; ++t) {
    if (mistake != Mistake::late_wait_for_full || t < kTiles - 1) wait_for_full(t);
    products_begin();
    for (unsigned k = 0; k < kK; k += 16) {
      const unsigned panel = k / kPanel, column = k % kPanel;
      const unsigned row = threadIdx.x / kWarpgroup * 64;
      multiply_shared<Bf16>(d,
                            rows_operand<kPanel>(shared_address(
                                memory + 2 * ((panel * 128 + row) * kPanel + column))),
                            rows_operand<kPanel>(shared_address(
                                tile(t % 2) + 2 * (panel * kRowsOfTile * kPanel + column))),
                            t > 0 || k > 0);
    }
    products_issued();
    if (mistake == Mistake::early_release) {
      release(t);
      products_wait<1>();
      continue;
    }
    products_wait<1>();
    if (t > 0) release(t - 1);
  }
  if (mistake == Mistake::sums_before_wait) write_sums(d, out);
  products_wait<0>();
  if (mistake == Mistake::late_wait_for_full) wait_for_full(kTiles - 1);
  if (mistake != Mistake::sums_before_wait) write_sums(d, out);
}

// Why it fails or what it gives: "wrong" or "right".
template <int kPanel>
std::string run_pipeline(Mistake mistake) {
  const auto a = numbers<Bf16>(128 * kK, 3), b = numbers<Bf16>(kTiles * kRowsOfTile * kK, 4);
  const TensorMap map_a = tensor_map({a.data(), 1, 128, 1, kK, kK, true, 128, kPanel});
  const TensorMap map_b =
      tensor_map({b.data(), 1, kTiles * kRowsOfTile, 1, kK, kK, true, kRowsOfTile, kPanel});
  std::vector<float> out(128 * kRowsOfTile);
  const std::string failure =
      failure_of(pipeline_kernel<kPanel>, dim3(288), kLeftBytes + 2 * kTileBytes + sizeof(Barriers),
                 map_a, map_b, out.data(), mistake);
  if (!failure.empty()) return failure;
  for (size_t i = 0; i < 128; ++i) {
    for (size_t j = 0; j < kRowsOfTile; ++j) {
      double sum = 0;
      for (size_t k = 0; k < kTiles * kK; ++k) {
        sum += static_cast<double>(to_float(a[i * kK + k % kK])) *
               static_cast<double>(to_float(b[(k / kK * kRowsOfTile + j) * kK + k % kK]));
      }
      if (!(std::abs(out[i * kRowsOfTile + j] - sum) < 1e-3)) return "wrong";
    }
  }
  return "right";
}

// --- named barriers

// Warps 0 and 1 hand numbers to each other; warp 2 tells warp 3 that its are there.
void named_kernel(int* out) {
  MTL_DYNAMIC_SHARED(memory);
  int* const shared = reinterpret_cast<int*>(memory);
  const unsigned i = threadIdx.x;
  shared[i] = static_cast<int>(i);
  if (i < 64) {
    for (int round = 0; round < 3; ++round) {
      sync_some(1, 64);
      const int other = shared[(i + 32) % 64];
      sync_some(1, 64);
      shared[i] = other + 100;
    }
    out[i] = shared[i];
  } else if (i < 96) {
    arrive_some(2, 64);
  } else {
    sync_some(2, 64);
    out[i] = shared[i - 32];
  }
}

enum class Wrong {
  id_0,
  id_16,
  odd_count,
  count_beyond_block,
  counts_that_differ,
  comes_twice,
  half_a_warp,
  lost_warp,
};
void wrong_named_kernel(Wrong wrong) {
  switch (wrong) {
    case Wrong::id_0:
      return sync_some(0, 64);
    case Wrong::id_16:
      return sync_some(16, 64);
    case Wrong::odd_count:
      return sync_some(1, 33);
    case Wrong::count_beyond_block:
      return sync_some(1, 96);
    case Wrong::counts_that_differ:
      return sync_some(1, threadIdx.x < 32 ? 64 : 32);
    case Wrong::comes_twice:
      if (threadIdx.x >= 32) return;
      arrive_some(1, 64);
      return arrive_some(1, 64);
    case Wrong::half_a_warp:
      if (threadIdx.x % 32 < 16) sync_some(1, 64);
      return;
    case Wrong::lost_warp:
      if (threadIdx.x < 32) sync_some(3, 64);
      return;
  }
}

// --- what is refused

enum class WrongBarrier {
  not_initialised,
  initialised_twice,
  not_made,
  overwritten,
  arrivals_beyond_phase,
  bytes_beyond_phase,
  phase_without_end,
  missed_phase,
  odd_parity,
  copy_not_aligned,
  copy_beyond,
  copy_nobody_waits_for,
  address_outside,
};
void wrong_barrier_kernel(WrongBarrier wrong, const float* from) {
  MTL_DYNAMIC_SHARED(memory);
  auto* const barriers = reinterpret_cast<Barrier*>(memory);
  const bool first = threadIdx.x == 0;
  if (first) {
    init(barriers[0], 2);
    if (wrong != WrongBarrier::not_made) barriers_made();
  }
  __syncthreads();
  switch (wrong) {
    case WrongBarrier::not_initialised:
      return arrive(barriers[1]);
    case WrongBarrier::initialised_twice:
      return init(barriers[0], 1);
    case WrongBarrier::not_made:
      if (!first) arrive(barriers[0]);
      return;
    case WrongBarrier::overwritten:
      barriers[0].state = 0;
      return arrive(barriers[0]);
    case WrongBarrier::arrivals_beyond_phase:
      arrive_expecting(barriers[0], 16);
      return;
    case WrongBarrier::bytes_beyond_phase:
      if (!first) return;
      arrive_expecting(barriers[0], 16);
      copy_bytes(memory + 64, from, 32, barriers[0]);
      arrive(barriers[0]);
      return wait(barriers[0], 0);
    case WrongBarrier::phase_without_end:
      if (first) arrive(barriers[0]);
      if (threadIdx.x < 2) wait(barriers[0], 0);
      return;
    case WrongBarrier::missed_phase:
      for (int i = 0; first && i < 4; ++i) arrive(barriers[0]);
      if (threadIdx.x == 1) wait(barriers[0], 0);
      return;
    case WrongBarrier::odd_parity:
      return wait(barriers[0], 2);
    case WrongBarrier::copy_not_aligned:
      return copy_bytes(memory + 72, from, 32, barriers[0]);
    case WrongBarrier::copy_beyond:
      return copy_bytes(memory + 112, from, 32, barriers[0]);
    case WrongBarrier::copy_nobody_waits_for:
      if (first) copy_bytes(memory + 64, from, 32, barriers[0]);
      return;
    case WrongBarrier::address_outside:
      shared_address(from);
      return;
  }
}

enum class WrongProduct {
  none,
  not_begun,
  not_begun_again,
  not_waited_for,
  lanes_differ,
  warps_differ,
  warp_missing,
  no_swizzle,
  swizzle_of_32,
  base_offset,
  odd_row,
  beyond,
  sums_written,
  sums_overlap,
};
void wrong_product_kernel(WrongProduct wrong) {
  MTL_DYNAMIC_SHARED(memory);
  for (unsigned i = threadIdx.x; i < 16384; i += blockDim.x) memory[i] = 0;
  __syncthreads();
  const auto is = [&](WrongProduct one) { return wrong == one; };
  uint64_t left = rows_operand<64>(shared_address(memory)), right = left;
  if (is(WrongProduct::lanes_differ) && threadIdx.x % 32 == 7) right += 2;
  if (is(WrongProduct::warps_differ) && threadIdx.x / 32 == 2) right += 2;
  if (is(WrongProduct::no_swizzle)) right &= ~(uint64_t{3} << 62);
  if (is(WrongProduct::swizzle_of_32)) right |= uint64_t{3} << 62;
  if (is(WrongProduct::base_offset)) right |= uint64_t{1} << 49;
  if (is(WrongProduct::odd_row)) right = rows_operand<64>(shared_address(memory + 128));
  if (is(WrongProduct::beyond)) right = rows_operand<64>(shared_address(memory + 9 * 1024));
  float d[2][8][4] = {};
  if (!is(WrongProduct::not_begun)) products_begin();
  if (is(WrongProduct::warp_missing) && threadIdx.x / 32 == 1) return;
  multiply_shared<Half>(d[0], left, right, true);
  if (is(WrongProduct::sums_written)) d[0][3][1] = 0;
  if (is(WrongProduct::sums_overlap)) {
    multiply_shared<Half>(reinterpret_cast<float(&)[8][4]>(d[0][4]), left, right, true);
  }
  products_issued();
  if (is(WrongProduct::not_waited_for)) return;
  products_wait<0>();
  if (is(WrongProduct::not_begun_again)) multiply_shared<Half>(d[0], left, right, true);
}

}  // namespace

TEST_CASE("emulator: dynamic shared memory begins as the copy engine wants it") {
  for (int i = 0; i < 5; ++i) {
    bool right = false;
    launch(
        +[](bool* out) {
          MTL_DYNAMIC_SHARED(memory);
          *out = reinterpret_cast<uintptr_t>(memory) % 1024 == 0 && shared_address(memory) == 0 &&
                 shared_address(memory + 7) == 7;
        },
        dim3(1), dim3(1), 8, Stream{}, &right);
    CHECK(right);
  }
}

TEST_CASE("emulator: boxes of the copy engine, swizzled and with zeros around the tensor") {
  // [2][19][3][40] in rows of 3 * 40 + 8.
  std::vector<uint16_t> data(2 * 19 * 128);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint16_t>(i + 1);
  for (const bool early : {false, true}) {
    const ScheduleScope scope({Schedule::alternating, early, 1});
    for (const int panel : {64, 32}) {
      for (const int rows : {1, 16, 40, 256}) {
        const HeadsTensor tensor = {data.data(), 2, 19, 3, 40, 128, true, rows, panel};
        for (const BoxAt at :
             {BoxAt{0, 0, 0, 0}, BoxAt{0, 2, 3, 1}, BoxAt{32, 1, 18, 0}, BoxAt{-5, 1, -7, 1},
              BoxAt{3, 2, 30, 0}, BoxAt{0, 3, 0, 0}, BoxAt{0, 0, 0, 2}}) {
          check_box(tensor, at);
        }
      }
    }
  }
}

TEST_CASE("emulator: tensors that the driver refuses") {
  alignas(16) static uint16_t data[1024];
  const HeadsTensor right = {data, 1, 8, 2, 16, 32, true, 8, 64};
  CHECK(tensor_map(right).data == reinterpret_cast<unsigned char*>(data));
  const auto refused = [&](auto change) {
    HeadsTensor tensor = right;
    change(tensor);
    CHECK_THROWS_AS(tensor_map(tensor), std::runtime_error);
  };
  refused([](HeadsTensor& t) { t.data = nullptr; });
  refused([](HeadsTensor& t) { t.data = data + 4; });
  refused([](HeadsTensor& t) { t.dim = 12; });
  refused([](HeadsTensor& t) { t.row_stride = 36; });
  refused([](HeadsTensor& t) { t.row_stride = 0; });
  refused([](HeadsTensor& t) { t.seq = 0; });
  refused([](HeadsTensor& t) { t.rows = 0; });
  refused([](HeadsTensor& t) { t.rows = 257; });
  refused([](HeadsTensor& t) { t.panel = 128; });
}

TEST_CASE("emulator: bytes of the copy engine are not there before they were waited for") {
  alignas(16) float from[64];
  for (int i = 0; i < 64; ++i) from[i] = static_cast<float>(i);
  under_schedules([&](const Schedule& schedule) {
    for (const bool waits : {false, true}) {
      float out[64];
      launch(bytes_kernel, dim3(1), dim3(64), 16 + sizeof from, Stream{}, from, out, 64u, waits);
      for (int i = 0; i < 64; ++i) {
        if (waits || schedule.early_copies) {
          CHECK(out[i] == from[i]);
        } else {
          CHECK(std::isnan(out[i]));
        }
      }
    }
  });
}

TEST_CASE("emulator: tiles are stored as they are loaded") {
  under_schedules([](const Schedule&) {
    uint32_t right[128] = {};
    launch(tiles_kernel, dim3(1), dim3(32), 32 * 48, Stream{}, 48u, right);
    CHECK(std::count(std::begin(right), std::end(right), 1u) == 128);
  });
  uint32_t none[128];
  CHECK(failure_of(tiles_kernel, 32, 32 * 48, 24u, none) ==
        "a row of a tile that is not aligned to 16 bytes");
}

TEST_CASE("emulator: products of warpgroups against plain loops") {
  for (const bool early : {false, true}) {
    const ScheduleScope scope({Schedule::alternating, early, 1});
    check_products<Bf16, 64, 8>(early);
    check_products<Half, 64, 12>(!early);
    check_products<Bf16, 64, 16>(early);
    check_products<Half, 32, 8>(!early);
    check_products<Bf16, 32, 12>(early);
    check_products<Half, 32, 16>(!early);
  }
}

TEST_CASE("emulator: a product does not see a copy that was not waited for") {
  alignas(16) static Half ones[4096];
  std::fill(std::begin(ones), std::end(ones), from_float<Half>(1));
  under_schedules([&](const Schedule& schedule) {
    for (const bool waits : {false, true}) {
      float sum = 0;
      launch(product_of_copy_kernel, dim3(1), dim3(128), 8192 + sizeof(Barrier), Stream{}, ones,
             &sum, waits);
      if (waits || schedule.early_copies) {
        CHECK(sum == 16);
      } else if (schedule.order != Schedule::random) {  // by lot it may be there
        CHECK(std::isnan(sum));
      }
    }
  });
}

TEST_CASE("emulator: one thread copies and two warpgroups multiply, in any order") {
  under_schedules([](const Schedule&) {
    CHECK(run_pipeline<64>(Mistake::none) == "right");
    CHECK(run_pipeline<32>(Mistake::none) == "right");
  });
}

TEST_CASE("emulator: what copies, products and their barriers do not wait for is found") {
  const std::string hangs = "threads of a block wait for each other: ";
  const size_t barriers = kLeftBytes + 2 * kTileBytes;
  const std::string full = std::to_string(barriers + offsetof(Barriers, full));
  const std::string empty = std::to_string(barriers + offsetof(Barriers, empty));
  under_schedules([&](const Schedule& schedule) {
    if (!schedule.early_copies) {
      // By lot the copy may be there.
      if (schedule.order != Schedule::random) {
        CHECK(run_pipeline<64>(Mistake::late_wait_for_full) == "wrong");
      }
      CHECK(run_pipeline<64>(Mistake::no_wait_for_empty) == "wrong");
      CHECK(run_pipeline<64>(Mistake::early_release) == "wrong");
      CHECK(run_pipeline<64>(Mistake::sums_before_wait) == "wrong");
      CHECK(run_pipeline<32>(Mistake::few_bytes_by_a_panel) != "right");
    }
    CHECK(run_pipeline<64>(Mistake::few_bytes) ==
          "more bytes came to a barrier than its phase was told of");
    CHECK(run_pipeline<64>(Mistake::many_bytes) ==
          hangs + "256 at a phase of parity 0 of the mbarrier at " + full +
              ", 1 at a phase of parity 0 of the mbarrier at " + empty + "; 31 have ended");
    CHECK(run_pipeline<64>(Mistake::no_release) ==
          hangs + "1 at a phase of parity 0 of the mbarrier at " + empty +
              ", 256 at a phase of parity 1 of the mbarrier at " + full + "; 31 have ended");
  });
}

TEST_CASE("emulator: named barriers") {
  under_schedules([](const Schedule&) {
    int out[128] = {};
    launch(named_kernel, dim3(1), dim3(128), sizeof out, Stream{}, out);
    for (int i = 0; i < 64; ++i) CHECK(out[i] == (i + 32) % 64 + 300);
    for (int i = 96; i < 128; ++i) CHECK(out[i] == i - 32);
  });
  const auto failure = [](Wrong wrong) { return failure_of(wrong_named_kernel, 64, 0, wrong); };
  CHECK(failure(Wrong::id_0) == "named barrier 0");
  CHECK(failure(Wrong::id_16) == "named barrier 16");
  CHECK(failure(Wrong::odd_count) == "a named barrier for 33 threads");
  CHECK(failure(Wrong::count_beyond_block) == "a named barrier for 96 threads");
  CHECK(failure(Wrong::counts_that_differ) ==
        "a named barrier for 32 threads that others take to be for 64");
  CHECK(failure(Wrong::comes_twice) ==
        "a thread that comes to a named barrier twice before it opens");
  CHECK(failure(Wrong::half_a_warp) ==
        "threads of a block wait for each other: a warp operation names a lane that waits at a "
        "barrier or is gone");
  CHECK(failure(Wrong::lost_warp) ==
        "threads of a block wait for each other: 32 at named barrier 3; 32 have ended");
}

TEST_CASE("emulator: wrong uses of barriers and copies") {
  alignas(16) const float from[8] = {};
  const auto failure = [&](WrongBarrier wrong) {
    return failure_of(wrong_barrier_kernel, 4, 128, wrong, from);
  };
  CHECK(failure(WrongBarrier::not_initialised) ==
        "a barrier that was not initialised or has been overwritten");
  CHECK(failure(WrongBarrier::initialised_twice) == "a barrier that is initialised twice");
  CHECK(failure(WrongBarrier::not_made) ==
        "a barrier that another thread uses before barriers_made()");
  CHECK(failure(WrongBarrier::overwritten) ==
        "a barrier that was not initialised or has been overwritten");
  CHECK(failure(WrongBarrier::arrivals_beyond_phase) ==
        "more arrivals at a barrier than its phase has");
  CHECK(failure(WrongBarrier::bytes_beyond_phase) ==
        "more bytes came to a barrier than its phase was told of");
  CHECK(failure(WrongBarrier::phase_without_end) ==
        "threads of a block wait for each other: 2 at a phase of parity 0 of the mbarrier at 0; 2 "
        "have ended");
  under_schedules([&](const Schedule&) {
    CHECK(
        failure(WrongBarrier::missed_phase) ==
        "threads of a block wait for each other: 1 at a phase of parity 0 of the mbarrier at 0; 3 "
        "have ended");
  });
  CHECK(failure(WrongBarrier::odd_parity) == "a parity that is neither 0 nor 1");
  CHECK(failure(WrongBarrier::copy_not_aligned) ==
        "a copy to shared memory that is not aligned to 16 bytes");
  CHECK(failure(WrongBarrier::copy_beyond) == "a copy beyond the dynamic shared memory");
  CHECK(failure(WrongBarrier::copy_nobody_waits_for) ==
        "a block that ends before its copies to shared memory have come");
  CHECK(failure(WrongBarrier::address_outside) ==
        "an address that is not in the dynamic shared memory");
}

TEST_CASE("emulator: wrong uses of products") {
  const auto failure = [](WrongProduct wrong, unsigned threads = 128) {
    return failure_of(wrong_product_kernel, threads, 16384, wrong);
  };
  CHECK(failure(WrongProduct::none) == "");
  CHECK(failure(WrongProduct::none, 96) == "a product by a warpgroup that is not whole");
  const char* const not_begun = "a product without products_begin() before it";
  CHECK(failure(WrongProduct::not_begun) == not_begun);
  CHECK(failure(WrongProduct::not_begun_again) == not_begun);
  CHECK(failure(WrongProduct::not_waited_for) ==
        "a thread that ends without having waited for its products");
  CHECK(failure(WrongProduct::lanes_differ) == "lanes of a warp that ask for different things");
  CHECK(failure(WrongProduct::warps_differ) ==
        "warps of a warpgroup that issue different products");
  CHECK(failure(WrongProduct::warp_missing) ==
        "threads of a block wait for each other: 96 at products of warpgroup 0; 32 have ended");
  CHECK(failure(WrongProduct::no_swizzle) == "an operand that is not swizzled by 128 or 64 bytes");
  CHECK(failure(WrongProduct::swizzle_of_32) ==
        "an operand that is not swizzled by 128 or 64 bytes");
  CHECK(failure(WrongProduct::base_offset) == "an operand with a base offset");
  CHECK(failure(WrongProduct::odd_row) ==
        "an operand that does not begin with a repetition of its swizzle");
  CHECK(failure(WrongProduct::beyond) == "an operand beyond the dynamic shared memory");
  CHECK(failure(WrongProduct::sums_written) ==
        "sums that were written before their product was waited for");
  CHECK(failure(WrongProduct::sums_overlap) ==
        "sums that overlap those of a product that was not waited for");
}

}  // namespace mtl::cuda
