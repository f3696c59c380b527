// What our CUDA kernels are written against. nvcc sees CUDA itself; any other compiler sees the
// same names from tests/support/gpu_on_host.h, which runs a kernel's blocks and threads on the
// host, so that the tests of the ops run the very source of the kernels where there is no GPU.
//
// Kernels keep to: thread and block indices, shared memory, __syncthreads, warp shuffles and votes,
// atomics, and the wrappers at the end of this file (barriers, tensor cores, asynchronous copies).
// Host code of a kernel file uses launch() instead of <<<>>>.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#else
#include "support/gpu_on_host.h"
#include "support/warpgroup_on_host.h"
#endif

struct CUstream_st;  // as cudaStream_t points to

namespace mtl::cuda {

using Stream = CUstream_st*;

#if defined(__CUDACC__)

void check(cudaError_t error, const char* what);  // throws Error "device.cuda"

// Enqueues kernel<<<grid, block, shared_bytes, stream>>>(arguments...). Above 48 KiB of shared
// memory the kernel's limit is raised first; up to 16 of them may be its own, which are not asked
// for here.
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
            Stream stream, Arguments&&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  if (shared_bytes > (32u << 10)) {
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)),
          "shared memory of a kernel");
  }
  kernel<<<grid, block, shared_bytes, stream>>>(static_cast<Parameters>(arguments)...);
  check(cudaGetLastError(), "starting a kernel");
}

// For kernels whose blocks wait for one another, which may be for those alone that have begun
// before. CUDA promises no order of indices: such a block takes its place, or one after the other,
// from a counter.
template <typename... Parameters, typename... Arguments>
void launch_together(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                     Stream stream, Arguments&&... arguments) {
  launch(kernel, grid, block, shared_bytes, stream, std::forward<Arguments>(arguments)...);
}

// The dynamic shared memory of a block, 128-byte aligned.
#define MTL_DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
// The same where panels begin at once (warpgroup.h).
#define MTL_DYNAMIC_SHARED_PANELS(name) extern __shared__ __align__(1024) unsigned char name[]

#else

using gpu_on_host::launch;
using gpu_on_host::launch_together;
#define MTL_DYNAMIC_SHARED(name) unsigned char* const name = ::mtl::gpu_on_host::dynamic_shared()
#define MTL_DYNAMIC_SHARED_PANELS(name) MTL_DYNAMIC_SHARED(name)

#endif

// 16-bit floats as they lie in memory; arithmetic is in f32.
struct alignas(2) Bf16 {
  uint16_t bits;
};
struct alignas(2) Half {
  uint16_t bits;
};

__host__ __device__ inline float to_float(float x) {
  return x;
}
__host__ __device__ inline float to_float(Bf16 x) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
#else
  return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16);
#endif
}
// To nearest even; Half: from 65520 on infinite.
template <typename T>
__host__ __device__ inline T from_float(float x);
template <>
__host__ __device__ inline float from_float<float>(float x) {
  return x;
}
#if defined(__CUDACC__)
__device__ inline float to_float(Half x) {
  return __half2float(__ushort_as_half(x.bits));
}
template <>
__device__ inline Bf16 from_float<Bf16>(float x) {
  return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
}
template <>
__device__ inline Half from_float<Half>(float x) {
  return {__half_as_ushort(__float2half_rn(x))};
}
#else
inline float to_float(Half x) {
  return gpu_on_host::half_to_float(x.bits);
}
template <>
inline Bf16 from_float<Bf16>(float x) {
  return {gpu_on_host::float_to_bf16(x)};
}
template <>
inline Half from_float<Half>(float x) {
  return {gpu_on_host::float_to_half(x)};
}
#endif

// N elements that are loaded and stored at once; with N * sizeof(T) = 16 one instruction. The
// address has to be a multiple of the size.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];
};

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// The sum, or largest, of a warp's values, on every lane, in a fixed order.
__device__ inline float warp_sum(float x) {
  for (unsigned step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}
__device__ inline double warp_sum(double x) {
  for (unsigned step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}
__device__ inline float warp_max(float x) {
  for (unsigned step = kWarp / 2; step > 0; step /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  }
  return x;
}

// One of the barriers that the hardware has, 1 to 15 (0 is __syncthreads), for `threads` of a
// block, whole warps: waits until so many have come.
#if defined(__CUDACC__)
__device__ inline void sync_some(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
#else
inline void sync_some(int id, int threads) {
  gpu_on_host::named_barrier(id, threads, true);
}
#endif

// --- tensor cores and asynchronous copies (sm_80 on)

// d[16,8] += a[16,16] b[16,8] of a warp, f32 sums. Fragments as the PTX manual has them for
// mma.m16n8k16 ("Matrix Fragments for mma.m16n8k16 with floating point type"): with g = lane / 4
// and t = lane % 4, each register two elements, the lower column (row, of b) in the lower half,
//   a[0] = row g,     columns 2t, 2t+1      a[1] = row g + 8, columns 2t, 2t+1
//   a[2] = row g,     columns 2t+8, 2t+9    a[3] = row g + 8, columns 2t+8, 2t+9
//   b[0] = rows 2t, 2t+1, column g          b[1] = rows 2t+8, 2t+9, column g
//   d[0], d[1] = row g, columns 2t, 2t+1    d[2], d[3] = row g + 8, columns 2t, 2t+1
template <typename T>  // Bf16 or Half
__device__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

// Four 8x8 tiles of 16-bit elements from shared memory: lane i gives the address of row i % 8 of
// tile i / 8 (16 bytes, aligned); register r receives of tile r the elements [lane/4][2 (lane%4)]
// and the one behind it. With kTransposed: [2 (lane%4)][lane/4] and the row below.
template <bool kTransposed>
__device__ void load_tiles(uint32_t (&r)[4], const void* row);

// 16 bytes from device to shared memory, both aligned to 16; visible to this thread after its wait,
// to others after a barrier behind it. `valid` = false writes zeros and reads nothing.
__device__ void copy_async(void* shared, const void* global, bool valid = true);
__device__ void copy_async_commit();
// Until at most `kPending` of the committed groups are under way.
template <int kPending>
__device__ void copy_async_wait();

#if defined(__CUDACC__)

template <>
__device__ inline void mma_m16n8k16<Bf16>(float (&d)[4], const uint32_t (&a)[4],
                                          const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <>
__device__ inline void mma_m16n8k16<Half>(float (&d)[4], const uint32_t (&a)[4],
                                          const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <>
__device__ inline void load_tiles<false>(uint32_t (&r)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
template <>
__device__ inline void load_tiles<true>(uint32_t (&r)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ inline void copy_async(void* shared, const void* global, bool valid) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global),
               "r"(bytes)
               : "memory");
}
__device__ inline void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ inline void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

#else

template <>
inline void mma_m16n8k16<Bf16>(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  gpu_on_host::mma_m16n8k16(d, a, b, [](uint16_t bits) { return to_float(Bf16{bits}); });
}
template <>
inline void mma_m16n8k16<Half>(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  gpu_on_host::mma_m16n8k16(d, a, b, [](uint16_t bits) { return to_float(Half{bits}); });
}
template <bool kTransposed>
inline void load_tiles(uint32_t (&r)[4], const void* row) {
  gpu_on_host::load_tiles(r, row, kTransposed);
}
inline void copy_async(void* shared, const void* global, bool valid) {
  gpu_on_host::copy_async(shared, global, valid);
}
inline void copy_async_commit() {
  gpu_on_host::copy_async_commit();
}
template <int kPending>
inline void copy_async_wait() {
  gpu_on_host::copy_async_wait(kPending);
}

#endif

}  // namespace mtl::cuda
