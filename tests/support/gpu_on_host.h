// CUDA's execution model on the host, for the tests of kernels (runtime/device/cuda/gpu.h): a
// block's threads are fibers that run one after the other and stop at barriers, shuffles and the
// like, in every second block from the last thread to the first, and a warp as far as it can before
// the next; blocks run one after the other, from the last to the first, or, those of kernels whose
// blocks wait for one another, several at once on threads of the host. What it finds: wrong
// arithmetic and indices (with AddressSanitizer also one byte beyond a tensor or the dynamic shared
// memory), barriers that not all threads reach, shuffles without a lane that was named,
// asynchronous copies that are read before they were waited for, shared memory that is read before
// it was written (dynamic shared memory begins as NaN). What it cannot find: races that no order of
// whole threads between barriers shows (Schedule has several orders); how fast it is. What Hopper
// has beside that is in warpgroup_on_host.h.
//
// Arithmetic: f32 as the host has it, so tanhf or expf differ from the GPU's in the last bits, and
// tensor cores sum in f32 in the order of k.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>

// CUDA's own words, as nvcc has them without an include. CUDA's headers, where they come before,
// have some of them.
#undef __global__
#undef __device__
#undef __host__
#undef __forceinline__
#undef __launch_bounds__
#undef __shared__
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static thread_local

#if !defined(__VECTOR_TYPES_H__)
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
#endif

// Of the fiber that runs.
inline thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace mtl::gpu_on_host {

uint16_t float_to_bf16(float x);
uint16_t float_to_half(float x);
float half_to_float(uint16_t bits);

// Runs `body` once for each thread of the grid. Fails (an exception with the reason) where a GPU
// would hang or the launch would be refused (more than 1,024 threads, more than
// most_shared_bytes of dynamic shared memory).
void run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body);

// What a block may have of dynamic shared memory: an H100's, unless a test says less.
inline size_t most_shared_bytes = size_t{227} << 10;
// The level-2 cache, which decides the order of some kernels' blocks.
inline int64_t level2_bytes = int64_t{50} << 20;

// The order in which a block's threads run between barriers, and when asynchronous copies arrive:
// results must not depend on either.
struct Schedule {
  enum Order {
    alternating,  // the next two, block by block
    first_ahead,  // the first warp to the barrier, then the second
    last_ahead,   // the last thread first
    in_step,      // every warp to its next shuffle (or the like) in turn
    random,       // a warp by lot, for a while
  } order = alternating;
  // When they are started, else when they are waited for; so also products of warpgroups.
  bool early_copies = false;
  unsigned seed = 1;
  // Blocks that run at once, of launches together.
  unsigned resident = 1;
};
// Of the launches until it is destroyed.
class ScheduleScope {
 public:
  explicit ScheduleScope(const Schedule& schedule);
  ~ScheduleScope();
  ScheduleScope(const ScheduleScope&) = delete;
  ScheduleScope& operator=(const ScheduleScope&) = delete;

 private:
  Schedule before_;
};

// For kernels whose blocks wait for one another: run_grid takes Schedule::resident blocks of the
// launches within it at once.
class BlocksTogether {
 public:
  BlocksTogether() { wanted = true; }
  ~BlocksTogether() { wanted = false; }
  BlocksTogether(const BlocksTogether&) = delete;
  BlocksTogether& operator=(const BlocksTogether&) = delete;
  inline static thread_local bool wanted = false;
};

// A launch waits in its stream, where there are streams (tests/host_cuda); else it runs at once.
inline void (*enqueue)(void* stream, std::function<void()> launch) = nullptr;

template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, void* stream,
            Arguments&&... arguments) {
  const std::tuple<std::remove_cvref_t<Parameters>...> copies(
      static_cast<Parameters>(arguments)...);
  const auto run = [=] {
    run_grid(grid, block, shared_bytes, [&] { std::apply(kernel, copies); });
  };
  if (stream == nullptr) return run();
  enqueue(stream, [run, together = BlocksTogether::wanted] {
    if (!together) return run();
    const BlocksTogether blocks;
    run();
  });
}

template <typename... Parameters, typename... Arguments>
void launch_together(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                     void* stream, Arguments&&... arguments) {
  const BlocksTogether together;
  launch(kernel, grid, block, shared_bytes, stream, std::forward<Arguments>(arguments)...);
}

// Until *count is `least`, which blocks that have begun before bring about, with what they have
// written before it. Fails where none of them can, and where it is more.
void wait_for_blocks(const unsigned* count, unsigned least);
// *count += 1, behind what the block's threads have written.
void tell_blocks(unsigned* count);

unsigned char* dynamic_shared();

void block_barrier();
// Every named lane brings `bytes` of its own; when all are there, each may read those of the
// others: lane i's at result + i * kLaneBytes, until its next call. `last`: whether this lane was
// the last one to come; it may change the result, before the others see it.
inline constexpr size_t kLaneBytes = 64;
unsigned char* exchange(unsigned mask, const void* mine, size_t bytes, bool* last = nullptr);
unsigned lane();

template <typename T>
T shuffle(unsigned mask, T value, unsigned from) {
  static_assert(sizeof(T) <= kLaneBytes);
  const unsigned char* all = exchange(mask, &value, sizeof value);
  T result = value;
  if (from < 32 && (mask >> from & 1) != 0)
    std::memcpy(&result, all + from * kLaneBytes, sizeof(T));
  return result;
}

// Element `i` of a register of two.
inline uint16_t half_of(uint32_t both, int i) {
  return static_cast<uint16_t>(both >> (16 * i));
}
// As cuda::mma_m16n8k16; `widen` turns an element into f32.
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                  float (*widen)(uint16_t));
void load_tiles(uint32_t (&r)[4], const void* row, bool transposed);
void copy_async(void* shared, const void* global, bool valid);
void copy_async_commit();
void copy_async_wait(int pending);

}  // namespace mtl::gpu_on_host

inline void __syncthreads() {
  mtl::gpu_on_host::block_barrier();
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  mtl::gpu_on_host::exchange(mask, nullptr, 0);
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  const auto lane = static_cast<int>(mtl::gpu_on_host::lane());
  return mtl::gpu_on_host::shuffle(mask, value,
                                   static_cast<unsigned>(lane / width * width + from % width));
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, unsigned bits) {
  return mtl::gpu_on_host::shuffle(mask, value, mtl::gpu_on_host::lane() ^ bits);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned by) {
  return mtl::gpu_on_host::shuffle(mask, value, mtl::gpu_on_host::lane() + by);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by) {
  return mtl::gpu_on_host::shuffle(mask, value, mtl::gpu_on_host::lane() - by);
}
inline unsigned __ballot_sync(unsigned mask, int vote) {
  const unsigned char* all = mtl::gpu_on_host::exchange(mask, &vote, sizeof vote);
  unsigned bits = 0;
  for (unsigned i = 0; i < 32; ++i) {
    if ((mask >> i & 1) == 0) continue;
    int one = 0;
    std::memcpy(&one, all + i * mtl::gpu_on_host::kLaneBytes, sizeof one);
    if (one != 0) bits |= 1u << i;
  }
  return bits;
}
inline int __any_sync(unsigned mask, int vote) {
  return __ballot_sync(mask, vote) != 0;
}
inline int __all_sync(unsigned mask, int vote) {
  return __ballot_sync(mask, vote) == mask;
}

// Byte i of the result is the one that digit i of the selector names: 0 to 3 of a, 4 to 7 of b.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t both = uint64_t{b} << 32 | a;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    result |= static_cast<unsigned>(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  }
  return result;
}
inline int __popc(unsigned x) {
  return std::popcount(x);
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(uint64_t{a} * b >> 32);
}
// Of blocks that run at once too.
template <typename T, typename U>
T atomicAdd(T* address, U value) {
  return std::atomic_ref(*address).fetch_add(static_cast<T>(value));
}
template <typename T, typename U>
T atomicOr(T* address, U value) {
  const T before = *address;
  *address = static_cast<T>(before | value);
  return before;
}
template <typename T>
T atomicMax(T* address, T value) {
  const T before = *address;
  if (value > before) *address = value;
  return before;
}
using std::max;
using std::min;
