// What runtime/device/cuda/warpgroup.h has on the host: barriers that count bytes, the copy engine
// and the products of a warpgroup, for the threads that gpu_on_host.h runs.
//
// The engine and the products take as long as they may (Schedule::early_copies: no time at all). A
// copy leaves NaN at once and arrives, and a product reads its operands and gives its sums, only
// when no thread can go on otherwise; a copy to global memory reads when that is waited for, and
// writes at its end, and until its wait a product's sums are NaN. So what is read, overwritten or
// given back too early shows. What is not seen: shared memory that a kernel itself writes for the
// engine or a product without a proxy fence, operands in registers that change before the wait, and
// a barrier that others use without having waited for its initialisation in an order of threads
// that no Schedule has.
#pragma once

#include <array>
#include <cstdint>

namespace mtl::gpu_on_host {

// What the copy engine is told of a tensor: cuda::HeadsTensor, checked by cuda::tensor_map. As
// large as the driver's.
struct alignas(128) TensorMap {
  const unsigned char* data = nullptr;
  int64_t batch = 0, seq = 0, heads = 0, dim = 0, row_stride = 0;
  int rows = 0, panel = 0;
};

// From the beginning of the block's dynamic shared memory.
uint32_t shared_address(const void* pointer);

void barrier_init(void* barrier, unsigned arrivals);
void barriers_made();
void barrier_arrive(void* barrier, unsigned expected_bytes);
void barrier_wait(void* barrier, unsigned parity);
void named_barrier(int id, int threads, bool waits);

// `at`: column, head, row, sequence; what is outside the tensor is zeros.
void copy_box(void* shared, const TensorMap& map, void* barrier, std::array<int, 4> at);
void copy_bytes(void* shared, const void* from, unsigned bytes, void* barrier);
// The other way; by the thread that later waits for them.
void write_bytes(void* to, const void* shared, unsigned bytes);
void add_floats(float* to, const void* shared, unsigned bytes);
void writes_have_read();
void writes_done();
// stmatrix: register r of the lanes to rows of tile r, of which lane 8 r + i has row i.
void store_tiles(void* row, const uint32_t (&r)[4]);

void products_begin();
void products_issued();
void products_wait(int pending);
// How A and B of a product lie in shared memory.
enum class Operands : uint64_t {
  rows,       // both K-major
  registers,  // A is the four registers `left`, B is MN-major
  columns,    // both MN-major
};
// wgmma.m64nNk16 with N = columns: this thread's N / 2 sums at d. `widen` turns an element into
// f32.
void multiply(float* d, int columns, Operands operands, const uint32_t* left,
              uint64_t left_descriptor, uint64_t right_descriptor, bool adds,
              float (*widen)(uint16_t));

}  // namespace mtl::gpu_on_host
