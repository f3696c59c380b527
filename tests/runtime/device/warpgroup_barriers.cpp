// The emulator's barriers, named ones and those in shared memory (runtime/device/cuda/warpgroup.h):
// what they are for works, and uses that a GPU would hang on or not notice are found.
#include <doctest/doctest.h>

#include "runtime/device/warpgroup_test.h"

namespace mtl::cuda::warpgroup_test {

namespace {

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

}  // namespace

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

}  // namespace mtl::cuda::warpgroup_test
