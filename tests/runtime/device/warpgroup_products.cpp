// The emulator's products of warpgroups (runtime/device/cuda/warpgroup.h): they are what the PTX
// manual says, and those that a GPU would refuse or read too early are found.
#include <algorithm>
#include <cmath>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/device/warpgroup_test.h"

namespace mtl::cuda::warpgroup_test {

namespace {

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
    if (kN < 8 && kind != Kind::rows) continue;
    CAPTURE(static_cast<int>(kind));
    for (const int wrong_by : {0, 8}) {
      std::vector<float> out(128 * n);
      const auto run = [&](auto kernel, size_t bytes) {
        launch(kernel, dim3(1), dim3(256), bytes, Stream{}, a.data(), b.data(), out.data(), adds,
               wrong_by);
      };
      if (kind == Kind::rows) run(shared_kernel<T, kPanel, kN>, 2 * (128 + n) * kK + 1024 * kN);
      if constexpr (kN >= 8) {  // the narrower ones are of rows alone
        if (kind == Kind::registers) run(registers_kernel<T, kPanel, kN>, 2 * wide * kK + 1024);
        if (kind == Kind::columns) {
          run(columns_kernel<T, kPanel, kN>, 2 * (128 + wide) * kK + 1024 * kN);
        }
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

TEST_CASE("emulator: products of warpgroups against plain loops") {
  for (const bool early : {false, true}) {
    const ScheduleScope scope({Schedule::alternating, early, 1});
    check_products<Half, 64, 4>(early);
    check_products<Bf16, 64, 6>(!early);
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

}  // namespace mtl::cuda::warpgroup_test
