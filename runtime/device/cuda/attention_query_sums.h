// dQ where the blocks that own keys make it, on Hopper: each of them adds what its keys give to the
// f32 sums of a tile of queries. In an order, that of the keys, so the sums have the same bits
// every time. All blocks of a head begin with its last queries and go down to their own diagonal,
// the heads of a group inside: who starts together with the keys before is one tile behind them
// from then on, and hardly anybody waits: simulated (tests/reference/attention_schedule.py), the
// last block ends 1 to 4 % later than if the work were spread evenly. From the diagonal up it would
// be 3 to 15 %, since then the shortest blocks have to start first.
//
// There are as many blocks as multiprocessors, each with tile of keys after tile: a block fills
// one, so what it would take to start the next (of 1,024 tokens a tile meets five of queries on
// average, starting takes as long as one of them) nothing would hide. A tile's number is how many
// have begun before it, which `begun` counts, and a block has its tiles in this order: so all that
// a tile waits for have begun, or been done with, in whatever order the GPU starts blocks.
//
// A turn belongs to a tile of queries. The block on the diagonal is the last one, and writes dQ
// itself.
#pragma once

#include "runtime/device/cuda/attention_panels.h"

namespace mtl::cuda::warpgroups {

// Of a tile a consumer has 64 x 64 sums.
inline constexpr int kSumOctets = 8, kSumsOfWarp = 16 * 64;

struct QuerySums {
  float* sums = nullptr;      // [batch heads, tiles, warps, octet, lane, 4]: as the lanes have them
  unsigned* turns = nullptr;  // [batch heads, tiles]: how many have added
  unsigned* begun = nullptr;  // how many tiles of keys
  int tiles = 0;              // of a head's queries
};

// A turn has come when so many others have added.
#if defined(__CUDACC__)
__device__ inline void lane_waits_for_turn(const unsigned* turn, int before) {
  unsigned added = 0;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(added) : "l"(turn) : "memory");
  } while (added < static_cast<unsigned>(before));
}
__device__ inline void lane_passes_on_turn(unsigned* turn) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(turn) : "memory");
}
#else
inline void lane_waits_for_turn(const unsigned* turn, int before) {
  gpu_on_host::wait_for_blocks(turn, static_cast<unsigned>(before));
}
inline void lane_passes_on_turn(unsigned* turn) {
  gpu_on_host::tell_blocks(turn);
}
#endif

// Writes dS^T of a warp's 16 keys x 8 kN queries, rounded, to its rows of a tile of 128 keys, as
// the copy engine would: in panels of 64 queries.
inline constexpr unsigned kGradientPanel = 2 * 64 * kConsumers * kRows;
template <int kN>
__device__ inline void write_gradients(unsigned char* tile, const Consumer& consumer,
                                       const uint32_t (&ds)[kN][2]) {
  // At a time two octets of queries by the warp's keys: of these four 8 x 8 a lane has the address
  // of a row.
  const int octet = consumer.lane / 16, key_of_warp = consumer.lane % 16;
  const int key = consumer.index * kRows + 16 * consumer.warp + key_of_warp;
  MTL_UNROLL()
  for (int n = 0; n < kN; n += 2) {
    const int piece = (n % 8 + octet) ^ (key_of_warp % 8);
    const uint32_t four[4] = {ds[n][0], ds[n][1], ds[n + 1][0], ds[n + 1][1]};
    store_tiles(tile + n / 8 * static_cast<int>(kGradientPanel) + key * 128 + piece * 16, four);
  }
}

// Issues dq = dS K for a consumer's part: with heads of 64 its half of the queries, with heads of
// 128 all of them and its half of the columns. `gradients` as written above, by all, and the keys
// as the copy engine has left them, kRows of them per consumer, own_bytes apart.
template <typename T, int kDim>
__device__ inline void multiply_gradients(float (&dq)[kSumOctets][4], uint32_t gradients,
                                          uint32_t keys, unsigned own_bytes, int consumer) {
  static_assert(kDim == 64 || kDim == 128);
  constexpr unsigned kPanelBytes = Panels<kDim>::panel_bytes(kRows);
  const auto part = static_cast<unsigned>(consumer);
  const uint64_t left =
      columns_operand<64>(gradients + (kDim == 64 ? part * kGradientPanel : 0), kGradientPanel);
  const uint64_t right =
      columns_operand<64>(keys + (kDim == 64 ? 0 : part * kPanelBytes), kPanelBytes);
  products_begin();
  MTL_UNROLL()
  for (unsigned k = 0; k < kConsumers * kRows; k += 16) {
    multiply_columns<T>(dq, descriptor::behind(left, k * 128),
                        descriptor::behind(right, k / kRows * own_bytes + k % kRows * 128), k > 0);
  }
  products_issued();
}

}  // namespace mtl::cuda::warpgroups
