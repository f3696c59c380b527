// What the backward of heads beyond 128 is put together from on Hopper, beside attention_panels.h:
// DeepSeek's heads, of 192 elements with values of 128, and Gemma's, of 256.
#pragma once

#include "runtime/device/cuda/attention_key_tiles.h"
#include "runtime/device/cuda/attention_warpgroups.h"

namespace mtl::cuda {

namespace wide_backward {

using namespace warpgroups;

inline constexpr int kPanel = 64;  // columns; all these widths are multiples

template <int kN>
__device__ inline void clear_sums(float (&c)[kN][4]) {
  clear(reinterpret_cast<float(&)[1][kN][4]>(c));
}

// The tiles of queries of a tile of keys, one after the other.
struct QueryStep {
  int member, tile;
  __device__ void advance(int group) {
    if (++member < group) return;
    member = 0;
    --tile;
  }
};

// --- host

// Q with K, V, and dO.
struct WideMaps {
  TensorMap qk, v, dout;
};
template <typename T>
WideMaps wide_maps(const AttentionWork& w, int rows) {
  return {map_of_keys<T, kPanel>(w, rows), map_of_values<T, kPanel>(w, rows),
          map_of_dout<T, kPanel>(w, rows)};
}

}  // namespace wide_backward

// Enqueues dK and dV of heads of 256.
void paired_keys_by_warpgroups(Queue& queue, const AttentionWork& w, DType dtype);

}  // namespace mtl::cuda
