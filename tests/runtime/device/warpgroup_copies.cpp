// The emulator's copy engine (runtime/device/cuda/warpgroup.h): boxes of tensors, bytes and tiles
// arrive as the PTX manual says, and not before they were waited for.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/device/warpgroup_test.h"

namespace mtl::cuda::warpgroup_test {

namespace {

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
    CHECK_THROWS(tensor_map(tensor));
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

}  // namespace mtl::cuda::warpgroup_test
