// A kernel as they are, on the emulator: one thread copies, two warpgroups multiply, with two
// stages between them; in any order of threads it computes the same, and what it would not wait for
// is found.
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/device/warpgroup_test.h"

namespace mtl::cuda::warpgroup_test {

namespace {

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

}  // namespace

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

}  // namespace mtl::cuda::warpgroup_test
