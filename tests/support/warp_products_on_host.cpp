// The tensor cores of a warp: mma and ldmatrix.
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "support/block_on_host.h"

namespace mtl::gpu_on_host {

namespace {

// What a lane brings to a product.
struct Fragments {
  float d[4];
  uint32_t a[4], b[2];
};

// In place of each lane's d its sums. Once for the whole warp, so that each element is widened
// once.
void multiply_warp(unsigned char* all, float (*widen)(uint16_t)) {
  float left[16][16];
  EightFloats right[16], sums[16];
  for (unsigned i = 0; i < 32; ++i) {
    Fragments mine;
    std::memcpy(&mine, all + i * kLaneBytes, sizeof mine);
    const unsigned g = i / 4, t = i % 4;
    for (unsigned r = 0; r < 4; ++r) {
      sums[g + r / 2 * 8][2 * t + r % 2] = mine.d[r];
      for (unsigned part = 0; part < 2; ++part) {  // a register has two elements along k
        const unsigned k = 2 * t + part;
        left[g + r % 2 * 8][k + r / 2 * 8] = widen(half_of(mine.a[r], static_cast<int>(part)));
        if (r < 2) right[k + 8 * r][g] = widen(half_of(mine.b[r], static_cast<int>(part)));
      }
    }
  }
  for (unsigned row = 0; row < 16; ++row) add_products(sums[row], left[row], right, 16);
  for (unsigned i = 0; i < 32; ++i) {
    float d[4];
    for (unsigned r = 0; r < 4; ++r) d[r] = sums[i / 4 + r / 2 * 8][i % 4 * 2 + r % 2];
    std::memcpy(all + i * kLaneBytes, d, sizeof d);
  }
}

}  // namespace

void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                  float (*widen)(uint16_t)) {
  Fragments mine;
  static_assert(sizeof mine <= kLaneBytes);
  std::memcpy(mine.d, d, sizeof d);
  std::memcpy(mine.a, a, sizeof a);
  std::memcpy(mine.b, b, sizeof b);
  bool last = false;
  unsigned char* const all = exchange(0xffffffffu, &mine, sizeof mine, &last);
  if (last) multiply_warp(all, widen);
  std::memcpy(d, all + lane() * kLaneBytes, sizeof d);
}

void load_tiles(uint32_t (&r)[4], const void* row, bool transposed) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) {
    throw std::runtime_error("a row of a tile that is not aligned to 16 bytes");
  }
  const unsigned char* all = exchange(0xffffffffu, &row, sizeof row);
  const auto element = [&](unsigned tile, unsigned i, unsigned j) {
    const uint16_t* from = nullptr;
    std::memcpy(&from, all + (8 * tile + i) * kLaneBytes, sizeof from);
    return uint32_t{from[j]};
  };
  const unsigned g = lane() / 4, t = lane() % 4;
  for (unsigned tile = 0; tile < 4; ++tile) {
    r[tile] = transposed ? element(tile, 2 * t, g) | element(tile, 2 * t + 1, g) << 16
                         : element(tile, g, 2 * t) | element(tile, g, 2 * t + 1) << 16;
  }
}

}  // namespace mtl::gpu_on_host
