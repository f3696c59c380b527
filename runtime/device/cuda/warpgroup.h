// What only Hopper has (compute capability 9.0; code for sm_90a, which runs on nothing else): the
// products of a warpgroup on tensor cores (wgmma), the copy engine (TMA), and the barriers in
// shared memory (mbarrier) that it completes on. Section and figure names are the PTX manual's
// (ISA 9.0).
//
// A tile in shared memory is made of panels: [kDim / kPanel][rows][kPanel] 16-bit elements, a panel
// row being 128 bytes (kPanel = 64) or 64 (32). Within a panel the 16-byte pieces are swizzled as
// the copy engine and wgmma both know it ("Swizzling modes"): piece i of row r lies at i ^ (r % 8)
// in rows of 128 bytes, at i ^ (r / 2 % 4) in rows of 64. Panels begin at multiples of 1,024 bytes.
//
// Everything a kernel needs to order by itself: what wgmma reads and the copy engine has brought
// (the async proxy both) needs no proxy fence, what threads have written does
// (written_for_products()), and what they have read before it is copied to (read_before_copies());
// registers of a product may not be touched between its issue and its wait.
#pragma once

#include <cstdint>
#include <type_traits>

#include "runtime/device/cuda/gpu.h"

#if defined(__CUDACC__)
#include <cuda.h>
#endif

namespace mtl::cuda {

inline constexpr unsigned kWarpgroup = 128;

#if defined(__CUDACC__)
using TensorMap = CUtensorMap;
#define MTL_GRID_CONSTANT __grid_constant__
#else
using TensorMap = gpu_on_host::TensorMap;
#define MTL_GRID_CONSTANT
#endif

// --- host: what the copy engine is told of a tensor

// 16-bit elements [batch][seq][heads][dim], elements of a head side by side, heads `dim` apart,
// rows `row_stride` elements apart; a box is `rows` rows of `panel` elements of one head. What is
// beyond seq or dim is zeros.
struct HeadsTensor {
  const void* data = nullptr;  // a multiple of 16 bytes, as dim and row_stride are in bytes
  int64_t batch = 0, seq = 0, heads = 0, dim = 0, row_stride = 0;
  bool is_bf16 = true;
  int rows = 0, panel = 0;  // at most 256; 64 or 32
};
// Throws Error "device.cuda" where the driver refuses it.
TensorMap tensor_map(const HeadsTensor& tensor);

// --- barriers

// In shared memory. A phase ends when all arrivals have come and all bytes that were announced are
// there; then the next one begins. Phases alternate in parity, the first one is 0.
struct alignas(8) Barrier {
  uint64_t state;
};

// --- descriptors

// The operand at `first` (element of row r0, column c0 of a tile: r0 a multiple of 8, c0 of 16
// within its panel) for wgmma ("Matrix Descriptor Format"). Both read 16 of k.
//   rows_operand: rows of the tile are m or n, its columns k; 64 rows as A, N as B.
//   columns_operand: the tile's columns are m or n, its rows k; 64 columns as A, N as B, that may
//     go over panels, which are panel_bytes apart.
template <int kPanel>
__device__ inline uint64_t rows_operand(uint32_t first);
template <int kPanel>
__device__ inline uint64_t columns_operand(uint32_t first, uint32_t panel_bytes);

namespace descriptor {
// Addresses and offsets are in units of 16 bytes, of 18 bits.
__host__ __device__ inline constexpr uint64_t encode(uint32_t bytes) {
  return (bytes & 0x3ffff) >> 4;
}
template <int kPanel>
__host__ __device__ inline constexpr uint64_t make(uint32_t first, uint32_t leading_bytes,
                                                   uint32_t stride_bytes) {
  static_assert(kPanel == 64 || kPanel == 32);
  constexpr uint64_t kSwizzle = kPanel == 64 ? 1 : 2;  // of 128 bytes, of 64
  return encode(first) | encode(leading_bytes) << 16 | encode(stride_bytes) << 32 | kSwizzle << 62;
}
// The same operand so many bytes (a multiple of 16) behind. Addresses of shared memory end below
// 2^18, so nothing is carried out of their field: an addition, where a descriptor made anew is six
// instructions for each product.
__host__ __device__ inline constexpr uint64_t behind(uint64_t operand, uint32_t bytes) {
  return (operand & ~uint64_t{0xffffffff}) | (static_cast<uint32_t>(operand) + (bytes >> 4));
}
}  // namespace descriptor

template <int kPanel>
__device__ inline uint64_t rows_operand(uint32_t first) {
  // The leading offset is not used with a swizzle; the stride is that of 8 rows.
  return descriptor::make<kPanel>(first, 16, 8 * 2 * kPanel);
}
template <int kPanel>
__device__ inline uint64_t columns_operand(uint32_t first, uint32_t panel_bytes) {
  // Leading: from panel to panel along n; stride: from 8 rows to the next along k.
  return descriptor::make<kPanel>(first, panel_bytes, 8 * 2 * kPanel);
}

#if defined(__CUDACC__)

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// By one thread: `arrivals` end a phase.
__device__ inline void init(Barrier& barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)),
               "r"(arrivals)
               : "memory");
}
// By the thread that has called init, before the __syncthreads behind which others use them.
__device__ inline void barriers_made() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void arrive(Barrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier))
               : "memory");
}
// One arrival that announces bytes which the copy engine will bring in this phase.
__device__ inline void arrive_expecting(Barrier& barrier, unsigned bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
      "r"(bytes)
      : "memory");
}
// Until the phase of this parity has ended: of a barrier in its first phase, parity 1 has.
__device__ inline void wait(Barrier& barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra end;\n"
      "bra again;\n"
      "end:\n"
      "}\n" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
}
// The other half of sync_some (gpu.h): counts, and goes on.
__device__ inline void arrive_some(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// load_tiles (gpu.h) the other way: register r's two elements go to tile r.
__device__ inline void store_tiles(void* row, const uint32_t (&r)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(shared_address(row)),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
}

// By the threads that have written to shared memory what products will read, before the barrier
// that these are behind.
__device__ inline void written_for_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// By the threads that have read from shared memory what the copy engine will write, before they say
// so to who starts it. (What wgmma has read needs none: it is of the same proxy.)
__device__ inline void read_before_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// --- the copy engine; by one thread

// A box to `shared` (a multiple of 1,024 bytes), in order and swizzled: elements from `column` of a
// head, rows from `row` of a sequence. All of the box's bytes complete on the barrier, zeros too.
__device__ inline void copy_box(void* shared, const TensorMap& map, Barrier& barrier, int column,
                                int head, int row, int sequence) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(shared)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(column), "r"(head), "r"(row), "r"(sequence)
      : "memory");
}
// Bytes in a row; addresses and count multiples of 16.
__device__ inline void copy_bytes(void* shared, const void* from, unsigned bytes,
                                  Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(shared)),
      "l"(from), "r"(bytes), "r"(shared_address(&barrier))
      : "memory");
}
// The other way, bytes or f32 sums in a row; addresses and count multiples of 16. What threads have
// written there is behind written_for_products().
__device__ inline void write_bytes(void* to, const void* shared, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
}
__device__ inline void add_floats(float* to, const void* shared, unsigned bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
      "r"(shared_address(shared)), "r"(bytes)
      : "memory");
}
// Behind the last of them: then, until all that this thread has asked for has been read from shared
// memory, or is in global memory.
__device__ inline void writes_issued() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ inline void writes_have_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ inline void writes_done() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
// Between what a thread knows of global memory and what it asks the copy engine to do there.
__device__ inline void known_to_copies() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}
// The map itself, ahead of the first copy.
__device__ inline void fetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// --- registers: each warpgroup calls one of them once, at the start of its part

template <int kCount>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// --- products; by all threads of a warpgroup

// Before the first product, and whenever registers that one uses have been written by others.
__device__ inline void products_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Those issued since the last time are a group.
__device__ inline void products_issued() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most kPending groups are not done.
template <int kPending>
__device__ inline void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// The compiler moves no use of these registers over this place.
template <int kN>
__device__ inline void hold(float (&d)[kN][4]) {
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(d[n][i])::"memory");
  }
}

// The same of operands that are in registers: what made them stays before a products_begin() behind
// this place.
template <int kN>
__device__ inline void hold(uint32_t (&a)[kN][2]) {
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) asm volatile("" : "+r"(a[n][i])::"memory");
  }
}

// clang-format off
#define MTL_D4(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define MTL_D16(i) MTL_D4(i), MTL_D4(i + 1), MTL_D4(i + 2), MTL_D4(i + 3)
#define MTL_R16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define MTL_R24 MTL_R16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define MTL_R32 \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define MTL_R48 MTL_R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define MTL_R64 MTL_R48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
// `add`, `a`, `b` are the numbers of the operands behind the sums.
#define MTL_WGMMA_SHARED(turned, n, type, sums, a, b, add, ...)                               \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\n"                               \
               "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" sums "}, " \
               a ", " b ", p, 1, 1, " turned ", " turned ";\n}\n"                             \
               : __VA_ARGS__ : "l"(left), "l"(right), "r"(static_cast<int>(adds)))
#define MTL_WGMMA_ROWS(...) MTL_WGMMA_SHARED("0", __VA_ARGS__)
#define MTL_WGMMA_COLUMNS(...) MTL_WGMMA_SHARED("1", __VA_ARGS__)
#define MTL_WGMMA_REGISTERS(n, type, sums, a, b, add, ...)                                    \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\n"                               \
               "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" sums "}, " \
               "{" a "}, " b ", p, 1, 1, 1;\n}\n"                                             \
               : __VA_ARGS__                                                                  \
               : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right),          \
                 "r"(static_cast<int>(adds)))
#define MTL_WGMMA_SIZES(kind, type, a64, b64, p64, a96, b96, p96, a128, b128, p128)                \
  if constexpr (kN == 8) {                                                                         \
    kind("64", type, MTL_R32, a64, b64, p64, MTL_D16(0), MTL_D16(4));                              \
  } else if constexpr (kN == 12) {                                                                 \
    kind("96", type, MTL_R48, a96, b96, p96, MTL_D16(0), MTL_D16(4), MTL_D16(8));                  \
  } else {                                                                                         \
    static_assert(kN == 16);                                                                       \
    kind("128", type, MTL_R64, a128, b128, p128, MTL_D16(0), MTL_D16(4), MTL_D16(8), MTL_D16(12)); \
  }
#define MTL_WGMMA_NARROW(kind, type)                                                        \
  if constexpr (kN == 4) {                                                                  \
    kind("32", type, MTL_R16, "%16", "%17", "%18", MTL_D16(0));                             \
  } else {                                                                                  \
    static_assert(kN == 6);                                                                 \
    kind("48", type, MTL_R24, "%24", "%25", "%26", MTL_D16(0), MTL_D4(4), MTL_D4(5));       \
  }
// clang-format on

// d (+)= A B, issued: A 64 x 16 and B 16 x 8 kN (kN 8, 12 or 16, here also 4 or 6), f32 sums;
// without `adds` d is overwritten. Warp i of the warpgroup has rows 16 i to 16 i + 15 of d, in the
// layout of mma_m16n8k16, octet n of columns in d[n] ("Register Fragments", wgmma.m64nNk16).
// Both operands are rows_operand()s.
template <typename T, int kN>
__device__ inline void multiply_shared(float (&d)[kN][4], uint64_t left, uint64_t right,
                                       bool adds) {
  if constexpr (kN < 8) {
    if constexpr (std::is_same_v<T, Bf16>) {
      MTL_WGMMA_NARROW(MTL_WGMMA_ROWS, "bf16")
    } else {
      MTL_WGMMA_NARROW(MTL_WGMMA_ROWS, "f16")
    }
  } else if constexpr (std::is_same_v<T, Bf16>) {
    MTL_WGMMA_SIZES(MTL_WGMMA_ROWS, "bf16", "%32", "%33", "%34", "%48", "%49", "%50", "%64", "%65",
                    "%66")
  } else {
    MTL_WGMMA_SIZES(MTL_WGMMA_ROWS, "f16", "%32", "%33", "%34", "%48", "%49", "%50", "%64", "%65",
                    "%66")
  }
}
// The same of two columns_operand()s, A's columns being rows of d.
template <typename T, int kN>
__device__ inline void multiply_columns(float (&d)[kN][4], uint64_t left, uint64_t right,
                                        bool adds) {
  if constexpr (std::is_same_v<T, Bf16>) {
    MTL_WGMMA_SIZES(MTL_WGMMA_COLUMNS, "bf16", "%32", "%33", "%34", "%48", "%49", "%50", "%64",
                    "%65", "%66")
  } else {
    MTL_WGMMA_SIZES(MTL_WGMMA_COLUMNS, "f16", "%32", "%33", "%34", "%48", "%49", "%50", "%64",
                    "%65", "%66")
  }
}
// The same with A in registers, as mma_m16n8k16 has it, and B a columns_operand().
template <typename T, int kN>
__device__ inline void multiply_registers(float (&d)[kN][4], const uint32_t (&left)[4],
                                          uint64_t right, bool adds) {
  if constexpr (std::is_same_v<T, Bf16>) {
    MTL_WGMMA_SIZES(MTL_WGMMA_REGISTERS, "bf16", "%32,%33,%34,%35", "%36", "%37", "%48,%49,%50,%51",
                    "%52", "%53", "%64,%65,%66,%67", "%68", "%69")
  } else {
    MTL_WGMMA_SIZES(MTL_WGMMA_REGISTERS, "f16", "%32,%33,%34,%35", "%36", "%37", "%48,%49,%50,%51",
                    "%52", "%53", "%64,%65,%66,%67", "%68", "%69")
  }
}

#undef MTL_WGMMA_NARROW
#undef MTL_WGMMA_SIZES
#undef MTL_WGMMA_REGISTERS
#undef MTL_WGMMA_COLUMNS
#undef MTL_WGMMA_ROWS
#undef MTL_WGMMA_SHARED
#undef MTL_R64
#undef MTL_R48
#undef MTL_R32
#undef MTL_R24
#undef MTL_R16
#undef MTL_D16
#undef MTL_D4

#else

inline uint32_t shared_address(const void* pointer) {
  return gpu_on_host::shared_address(pointer);
}
inline void init(Barrier& barrier, unsigned arrivals) {
  gpu_on_host::barrier_init(&barrier, arrivals);
}
inline void barriers_made() {
  gpu_on_host::barriers_made();
}
inline void arrive(Barrier& barrier) {
  gpu_on_host::barrier_arrive(&barrier, 0);
}
inline void arrive_expecting(Barrier& barrier, unsigned bytes) {
  gpu_on_host::barrier_arrive(&barrier, bytes);
}
inline void wait(Barrier& barrier, unsigned parity) {
  gpu_on_host::barrier_wait(&barrier, parity);
}
inline void store_tiles(void* row, const uint32_t (&r)[4]) {
  gpu_on_host::store_tiles(row, r);
}
inline void written_for_products() {}
inline void read_before_copies() {}
inline void arrive_some(int id, int threads) {
  gpu_on_host::named_barrier(id, threads, false);
}
inline void copy_box(void* shared, const TensorMap& map, Barrier& barrier, int column, int head,
                     int row, int sequence) {
  gpu_on_host::copy_box(shared, map, &barrier, {column, head, row, sequence});
}
inline void copy_bytes(void* shared, const void* from, unsigned bytes, Barrier& barrier) {
  gpu_on_host::copy_bytes(shared, from, bytes, &barrier);
}
inline void write_bytes(void* to, const void* shared, unsigned bytes) {
  gpu_on_host::write_bytes(to, shared, bytes);
}
inline void add_floats(float* to, const void* shared, unsigned bytes) {
  gpu_on_host::add_floats(to, shared, bytes);
}
inline void writes_issued() {}
inline void writes_have_read() {
  gpu_on_host::writes_have_read();
}
inline void writes_done() {
  gpu_on_host::writes_done();
}
inline void known_to_copies() {}
inline void fetch_map(const TensorMap&) {}
template <int kCount>
inline void give_registers() {}
template <int kCount>
inline void take_registers() {}
inline void products_begin() {
  gpu_on_host::products_begin();
}
inline void products_issued() {
  gpu_on_host::products_issued();
}
template <int kPending>
inline void products_wait() {
  gpu_on_host::products_wait(kPending);
}
template <int kN>
inline void hold(float (&)[kN][4]) {}
template <int kN>
inline void hold(uint32_t (&)[kN][2]) {}
template <typename T, int kN>
inline void multiply_shared(float (&d)[kN][4], uint64_t left, uint64_t right, bool adds) {
  gpu_on_host::multiply(&d[0][0], 8 * kN, gpu_on_host::Operands::rows, nullptr, left, right, adds,
                        [](uint16_t bits) { return to_float(T{bits}); });
}
template <typename T, int kN>
inline void multiply_columns(float (&d)[kN][4], uint64_t left, uint64_t right, bool adds) {
  gpu_on_host::multiply(&d[0][0], 8 * kN, gpu_on_host::Operands::columns, nullptr, left, right,
                        adds, [](uint16_t bits) { return to_float(T{bits}); });
}
template <typename T, int kN>
inline void multiply_registers(float (&d)[kN][4], const uint32_t (&left)[4], uint64_t right,
                               bool adds) {
  gpu_on_host::multiply(&d[0][0], 8 * kN, gpu_on_host::Operands::registers, left, 0, right, adds,
                        [](uint16_t bits) { return to_float(T{bits}); });
}

#endif

}  // namespace mtl::cuda
