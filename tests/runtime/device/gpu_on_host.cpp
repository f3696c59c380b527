// The emulator of CUDA's execution model itself: that it runs what a GPU would run, and reports
// what a GPU would hang on or compute wrongly.
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/device/cuda/gpu.h"

namespace mtl::cuda {

namespace {

// What launching the kernel fails with; empty if it does not.
template <typename Kernel, typename... Arguments>
std::string failure_of(Kernel kernel, dim3 grid, dim3 block, size_t shared,
                       Arguments&&... arguments) {
  try {
    launch(kernel, grid, block, shared, Stream{}, arguments...);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// A block waits for those of lower numbers: how many have begun before it, or its index.
void in_turn_kernel(unsigned* begun, unsigned* added) {
  if (threadIdx.x != 0) return;
  const unsigned place = begun != nullptr ? atomicAdd(begun, 1u) : blockIdx.x;
  gpu_on_host::wait_for_blocks(added, place);
  gpu_on_host::tell_blocks(added);
}

void where_kernel(int* out) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] += static_cast<int>(1 + thread);
}

// Each thread hands its number round the block; shared memory is written and read between barriers.
void rotate_kernel(int* out, int rounds) {
  MTL_DYNAMIC_SHARED(memory);
  int* const shared = reinterpret_cast<int*>(memory);
  int mine = static_cast<int>(threadIdx.x);
  for (int round = 0; round < rounds; ++round) {
    shared[threadIdx.x] = mine;
    __syncthreads();
    mine = shared[(threadIdx.x + 1) % blockDim.x];
    __syncthreads();
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = mine;
}

// Without the second barrier: one may overwrite what another has not read.
void racing_kernel(int* out) {
  MTL_DYNAMIC_SHARED(memory);
  int* const shared = reinterpret_cast<int*>(memory);
  int mine = static_cast<int>(threadIdx.x);
  for (int round = 0; round < 2; ++round) {
    shared[threadIdx.x] = mine;
    __syncthreads();
    mine = shared[(threadIdx.x + blockDim.x - 1) % blockDim.x];
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = mine;
}

// The same between warps, which wait for each other only at the barrier.
void overtaking_kernel(int* out) {
  MTL_DYNAMIC_SHARED(memory);
  int* const shared = reinterpret_cast<int*>(memory);
  const unsigned warp = threadIdx.x / 32, warps = blockDim.x / 32;
  int sum = 0;
  for (int round = 0; round < 3; ++round) {
    const int value = __shfl_sync(kAllLanes, round * 10 + static_cast<int>(warp), 0);
    if (threadIdx.x % 32 == 0) shared[warp] = value;
    __syncthreads();
    for (unsigned w = 0; w < warps; ++w) sum += shared[w];
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// No barrier at all: wrong in one direction at least.
void unordered_kernel(int* out, bool upwards) {
  MTL_DYNAMIC_SHARED(memory);
  int* const shared = reinterpret_cast<int*>(memory);
  const unsigned n = blockDim.x, i = threadIdx.x;
  shared[i] = static_cast<int>(i);
  out[blockIdx.x * n + i] = shared[upwards ? (i + 1) % n : (i + n - 1) % n];
}

void unread_shared_kernel(float* out) {
  MTL_DYNAMIC_SHARED(memory);
  out[threadIdx.x] = reinterpret_cast<float*>(memory)[threadIdx.x];
}

void lost_barrier_kernel() {
  if (threadIdx.x != 5) __syncthreads();
}
void barrier_behind_return_kernel() {
  if (threadIdx.x < 32) return;
  __syncthreads();
}
void shuffle_against_barrier_kernel() {
  if (threadIdx.x == 3) {
    __syncthreads();
  } else {
    __shfl_xor_sync(kAllLanes, 1, 1);
  }
}
void mask_without_caller_kernel() {
  __shfl_sync(0xfffffffeu, 1, 1);
}
void mask_beyond_block_kernel() {
  __shfl_sync(kAllLanes, 1, 0);
}
void masks_that_differ_kernel() {
  __ballot_sync(threadIdx.x < 16 ? kAllLanes : 0xffff0000u, 1);
}

void shuffles_kernel(int* out) {
  const int lane = static_cast<int>(threadIdx.x % 32), mine = 100 + static_cast<int>(threadIdx.x);
  int* const to = out + threadIdx.x * 8;
  to[0] = __shfl_sync(kAllLanes, mine, 7);
  to[1] = __shfl_xor_sync(kAllLanes, mine, 5);
  to[2] = __shfl_down_sync(kAllLanes, mine, 3);
  to[3] = __shfl_up_sync(kAllLanes, mine, 3);
  to[4] = static_cast<int>(__ballot_sync(kAllLanes, lane % 3 == 0));
  to[5] = __any_sync(kAllLanes, lane == 31) + 2 * __all_sync(kAllLanes, lane < 31);
  // Halves of a warp on their own.
  const unsigned half = lane < 16 ? 0x0000ffffu : 0xffff0000u;
  to[6] = __shfl_sync(half, mine, lane < 16 ? 2 : 18);
  to[7] = __shfl_sync(kAllLanes, mine, 1, 8);
}

void copies_kernel(const float* from, float* out, bool wait) {
  MTL_DYNAMIC_SHARED(memory);
  auto* const shared = reinterpret_cast<float*>(memory);
  const unsigned i = threadIdx.x * 4, n = blockDim.x * 4;
  copy_async(shared + i, from + i);
  copy_async_commit();
  copy_async(shared + n + i, from, false);
  copy_async_commit();
  if (wait) copy_async_wait<1>();
  __syncthreads();
  // The second group may still be under way.
  for (unsigned k = 0; k < 4; ++k) {
    out[i + k] = shared[n - 1 - i - k];
    out[n + i + k] = shared[n + i + k];
  }
  copy_async_wait<0>();
  for (unsigned k = 0; k < 4; ++k) out[2 * n + i + k] = shared[n + i + k];
}
void odd_copy_kernel(const float* from) {
  MTL_DYNAMIC_SHARED(memory);
  copy_async(memory, from + 1);
}

// a [16, 16] and b [16, 8] row-major, by load_tiles from shared memory: d += a b.
template <typename T>
void matrix_kernel(const T* a, const T* b, float* d) {
  MTL_DYNAMIC_SHARED(memory);
  T* const tile_a = reinterpret_cast<T*>(memory);
  T* const tile_b = tile_a + 256;
  const unsigned lane = threadIdx.x;
  for (unsigned i = lane; i < 256; i += 32) tile_a[i] = a[i];
  for (unsigned i = lane; i < 128; i += 32) tile_b[i] = b[i];
  __syncthreads();
  uint32_t ra[4], rb[4];
  // Tiles of a: rows 0-7 and 8-15 of columns 0-7, then of columns 8-15. Those of b twice.
  load_tiles<false>(ra, tile_a + (lane % 16) * 16 + lane / 16 * 8);
  load_tiles<true>(rb, tile_b + (lane % 16) * 8);
  const unsigned g = lane / 4, t = lane % 4;
  float sums[4];
  for (unsigned i = 0; i < 4; ++i) sums[i] = d[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2];
  const uint32_t two[2] = {rb[0], rb[1]};
  mma_m16n8k16<T>(sums, ra, two);
  for (unsigned i = 0; i < 4; ++i) d[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2] = sums[i];
}

template <typename T>
void check_matrix_product() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  alignas(16) T a[256], b[128];
  float d[128], expected[128];
  for (T& x : a) x = from_float<T>(normal(random));
  for (T& x : b) x = from_float<T>(normal(random));
  for (int i = 0; i < 128; ++i) d[i] = expected[i] = normal(random);
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      for (int k = 0; k < 16; ++k) {
        expected[i * 8 + j] += to_float(a[i * 16 + k]) * to_float(b[k * 8 + j]);
      }
    }
  }
  launch(matrix_kernel<T>, dim3(1), dim3(32), sizeof a + sizeof b, Stream{}, a, b, d);
  for (int i = 0; i < 128; ++i) CHECK(d[i] == doctest::Approx(expected[i]).epsilon(1e-5));
}

}  // namespace

TEST_CASE("emulator: every thread of every block runs once and knows its place") {
  std::vector<int> out(2 * 3 * 4 * 5 * 6 * 7);
  launch(where_kernel, dim3(2, 3, 4), dim3(5, 6, 7), 0, Stream{}, out.data());
  int64_t wrong = 0;
  for (size_t i = 0; i < out.size(); ++i) wrong += out[i] != static_cast<int>(1 + i % 210);
  CHECK(wrong == 0);
  launch(where_kernel, dim3(0), dim3(32), 0, Stream{}, static_cast<int*>(nullptr));
}

TEST_CASE("emulator: barriers order shared memory") {
  for (const unsigned threads : {1u, 31u, 32u, 33u, 1024u}) {
    std::vector<int> out(2 * threads);
    launch(rotate_kernel, dim3(2), dim3(threads), threads * sizeof(int), Stream{}, out.data(), 5);
    for (unsigned i = 0; i < out.size(); ++i) {
      REQUIRE(out[i] == static_cast<int>((i % threads + 5) % threads));
    }
  }
}

TEST_CASE("emulator: a missing barrier gives wrong results") {
  const auto right = [](const std::vector<int>& out, int by) {
    const auto n = static_cast<int>(out.size() / 2);
    for (int i = 0; i < 2 * n; ++i) {
      if (out[static_cast<size_t>(i)] != (i % n + by + n) % n) return false;
    }
    return true;
  };
  std::vector<int> out(128);
  launch(racing_kernel, dim3(2), dim3(64), 64 * sizeof(int), Stream{}, out.data());
  CHECK(!right(out, -2));
  launch(overtaking_kernel, dim3(1), dim3(128), 4 * sizeof(int), Stream{}, out.data());
  CHECK(std::count(out.begin(), out.end(), 3 * (0 + 1 + 2 + 3) + 4 * (0 + 10 + 20)) < 128);
  // Blocks run their threads in both directions, so neither kernel finds what it needs in all.
  for (const bool upwards : {false, true}) {
    launch(unordered_kernel, dim3(2), dim3(64), 64 * sizeof(int), Stream{}, out.data(), upwards);
    CHECK(!right(out, upwards ? 1 : -1));
  }
  float unread[4] = {};
  launch(unread_shared_kernel, dim3(1), dim3(4), sizeof unread, Stream{}, unread);
  for (const float x : unread) CHECK(std::isnan(x));
}

TEST_CASE("emulator: what a GPU would hang on is reported and the next kernel runs") {
  CHECK(failure_of(lost_barrier_kernel, dim3(2), dim3(64), 0) ==
        "a barrier that a thread of the block does not reach");
  CHECK(failure_of(barrier_behind_return_kernel, dim3(1), dim3(64), 0) ==
        "a barrier that a thread of the block does not reach");
  const char* const deadlock =
      "threads of a block wait for each other: a warp operation names a lane that waits at a "
      "barrier or is gone";
  CHECK(failure_of(shuffle_against_barrier_kernel, dim3(1), dim3(64), 0) == deadlock);
  CHECK(failure_of(masks_that_differ_kernel, dim3(1), dim3(32), 0) == deadlock);
  CHECK(failure_of(mask_without_caller_kernel, dim3(1), dim3(32), 0) ==
        "a warp operation whose mask does not name the lane that calls it");
  CHECK(failure_of(mask_beyond_block_kernel, dim3(1), dim3(20), 0) ==
        "a warp operation names a lane that is not there");
  std::vector<int> out(64);
  launch(rotate_kernel, dim3(1), dim3(64), 64 * sizeof(int), Stream{}, out.data(), 1);
  CHECK(out[0] == 1);
}

TEST_CASE("emulator: blocks begin in no order that another may wait for") {
  for (const unsigned resident : {1u, 3u}) {
    const gpu_on_host::ScheduleScope scope({.resident = resident});
    unsigned begun = 0, added = 0;
    launch_together(in_turn_kernel, dim3(9), dim3(32), 0, Stream{}, &begun, &added);
    CHECK(begun == 9);
    CHECK(added == 9);
  }
  unsigned added = 0;
  CHECK(failure_of(in_turn_kernel, dim3(9), dim3(32), 0, nullptr, &added) ==
        "a block waits for one that is to follow");
}

TEST_CASE("emulator: launches that a GPU refuses are refused") {
  CHECK(failure_of(lost_barrier_kernel, dim3(1), dim3(1025), 0) == "a block of 1025 threads");
  CHECK(failure_of(lost_barrier_kernel, dim3(1), dim3(0), 0) == "a block of 0 threads");
  CHECK(failure_of(lost_barrier_kernel, dim3(1, 65536), dim3(1), 0) ==
        "a grid beyond 65,535 in y or z");
  CHECK(failure_of(lost_barrier_kernel, dim3(1), dim3(1), (227 << 10) + 1) ==
        "232449 bytes of dynamic shared memory");
}

TEST_CASE("emulator: shuffles and votes") {
  std::vector<int> out(64 * 8);
  launch(shuffles_kernel, dim3(1), dim3(64), 0, Stream{}, out.data());
  for (int thread = 0; thread < 64; ++thread) {
    INFO("thread " << thread);
    const int lane = thread % 32, first = 100 + thread / 32 * 32;
    const int* const got = out.data() + thread * 8;
    CHECK(got[0] == first + 7);
    CHECK(got[1] == first + (lane ^ 5));
    CHECK(got[2] == first + (lane + 3 < 32 ? lane + 3 : lane));
    CHECK(got[3] == first + (lane >= 3 ? lane - 3 : lane));
    CHECK(static_cast<uint32_t>(got[4]) == 0x49249249u);
    CHECK(got[5] == 1);
    CHECK(got[6] == first + (lane < 16 ? 2 : 18));
    CHECK(got[7] == first + lane / 8 * 8 + 1);
  }
}

TEST_CASE("emulator: an asynchronous copy is not there before it was waited for") {
  const unsigned threads = 8, n = threads * 4;
  alignas(16) float from[n];
  for (unsigned i = 0; i < n; ++i) from[i] = static_cast<float>(i);
  for (const bool wait : {false, true}) {
    std::vector<float> out(3 * n);
    launch(copies_kernel, dim3(1), dim3(threads), 2 * sizeof from, Stream{}, from, out.data(),
           wait);
    for (unsigned i = 0; i < n; ++i) {
      if (wait) {
        CHECK(out[i] == from[n - 1 - i]);
      } else if (i < n / 2) {
        CHECK(std::isnan(out[i]));  // of threads that have not waited at all
      }
      CHECK(std::isnan(out[n + i]));
      CHECK(out[2 * n + i] == 0);
    }
  }
  CHECK(failure_of(odd_copy_kernel, dim3(1), dim3(1), 16, from) ==
        "an asynchronous copy that is not aligned to 16 bytes");
}

TEST_CASE("emulator: tiles and matrix products against plain loops") {
  check_matrix_product<Bf16>();
  check_matrix_product<Half>();
}

}  // namespace mtl::cuda
