// What the kernels of attention on Hopper are put together from: the products of whole warpgroups
// (wgmma), fed by the copy engine.
//
// A block has three warpgroups. One thread of the first does nothing but ask the copy engine for
// tiles, two or three stages ahead; the other two own 64 rows each (queries, or keys in dK/dV) and
// walk over the tiles. All operands but those that are sums of an earlier product are read from
// shared memory as the copy engine has left them there. A stage has two barriers: `full` (its bytes
// have come) and `empty` (all consuming warps are done with it).
//
// Tensor cores and exponentials run side by side in two ways (arXiv 2407.08608): within a warpgroup
// a product is issued before the arithmetic that does not need it, and in forward the two
// warpgroups take turns at issuing, so that one's products run under the other's softmax.
#pragma once

#include <type_traits>

#include "runtime/device/cuda/attention_tiles.h"
#include "runtime/device/cuda/warpgroup.h"

// Names that attention_tiles.h has too, for other tiles.
namespace mtl::cuda::warpgroups {

inline constexpr int kConsumers = 2, kThreads = (1 + kConsumers) * static_cast<int>(kWarpgroup);
inline constexpr int kConsumerThreads = kConsumers * static_cast<int>(kWarpgroup);
inline constexpr int kConsumerWarps = kConsumerThreads / static_cast<int>(kWarp);
inline constexpr int kRows = 64;     // of a consumer
inline constexpr int kBoxRows = 32;  // of what the copy engine brings at a time
// Of 65,536 / 384 = 170 registers a thread, the producer keeps 24 and leaves the rest.
inline constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
// What a block begins with, in units of 8 a thread: to take more would wait for ever.
static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <=
              65'536 / kThreads / 8 * 8 * (1 + kConsumers));
// Barriers of the hardware: a consumer's turn, its own threads, those of both.
inline constexpr int kTurn = 1, kOwnThreads = kTurn + kConsumers,
                     kAllConsumers = kOwnThreads + kConsumers;

// A tile of so many rows of kDim columns in shared memory (warpgroup.h).
template <int kDim>
struct Panels {
  static constexpr int kPanel = kDim % 64 == 0 ? 64 : 32, kCount = kDim / kPanel;
  static constexpr unsigned kRowBytes = 2 * kPanel;
  __host__ __device__ static constexpr unsigned tile_bytes(int rows) {
    return 2u * kDim * static_cast<unsigned>(rows);
  }
  __host__ __device__ static constexpr unsigned panel_bytes(int rows) {
    return kRowBytes * static_cast<unsigned>(rows);
  }
  // The 64 rows of a consumer, which later are room for its results (store_rows).
  static constexpr unsigned kOwnBytes = 2u * kRows * kRowElements<kDim>;
};

// Of dynamic shared memory; the launch asks for so many bytes more.
inline constexpr unsigned kAlignment = 1024;
__device__ inline unsigned char* aligned_shared(unsigned char* shared) {
  return shared + (kAlignment - shared_address(shared) % kAlignment) % kAlignment;
}

// Starts copying kTileRows rows from `row` on, in boxes of kBox.
template <int kDim, int kTileRows, int kBox = kBoxRows>
__device__ inline void copy_rows(unsigned char* tile, const TensorMap& map, Barrier& barrier,
                                 int head, int row, int sequence) {
  using Tile = Panels<kDim>;
  static_assert(kTileRows % kBox == 0);
  MTL_UNROLL(1)
  for (int panel = 0; panel < Tile::kCount; ++panel) {
    MTL_UNROLL(1)
    for (int first = 0; first < kTileRows; first += kBox) {
      copy_box(tile + panel * Tile::panel_bytes(kTileRows) + first * Tile::kRowBytes, map, barrier,
               panel * Tile::kPanel, head, row + first, sequence);
    }
  }
}

// Issues c = A B^T over kDim: A the 64 rows of a tile, B the first 8 kN rows of one of kTileRows.
template <typename T, int kDim, int kTileRows = 0, int kN>
__device__ inline void multiply_rows(float (&c)[kN][4], uint32_t a, uint32_t b) {
  using Tile = Panels<kDim>;
  constexpr unsigned kPanelBytes = Tile::panel_bytes(kTileRows > 0 ? kTileRows : 8 * kN);
  const uint64_t left = rows_operand<Tile::kPanel>(a), right = rows_operand<Tile::kPanel>(b);
  products_begin();
  MTL_UNROLL()
  for (int k = 0; k < kDim; k += 16) {
    const auto panel = static_cast<unsigned>(k / Tile::kPanel);
    const auto column = static_cast<unsigned>(k % Tile::kPanel * 2);
    multiply_shared<T>(c, descriptor::behind(left, panel * Tile::panel_bytes(kRows) + column),
                       descriptor::behind(right, panel * kPanelBytes + column), k > 0);
  }
  products_issued();
}

// Issues c += A B, or without `adds` c = A B: A is 64 rows of 8 kN sums, rounded, B the 8 kN rows
// of a tile. A product has up to 128 columns: of more there are two.
template <typename T, int kDim, int kN>
__device__ inline void multiply_sums(float (&c)[kDim / 8][4], uint32_t (&sums)[kN][2], uint32_t b,
                                     bool adds = true) {
  using Tile = Panels<kDim>;
  constexpr unsigned kPanelBytes = Tile::panel_bytes(8 * kN);
  constexpr int kFirst = kDim < 128 ? kDim / 8 : 16, kRest = kDim / 8 - kFirst;
  const uint64_t right = columns_operand<Tile::kPanel>(b, kPanelBytes);
  hold(sums);
  products_begin();
  MTL_UNROLL()
  for (int k = 0; k < kN; k += 2) {
    const uint32_t left[4] = {sums[k][0], sums[k][1], sums[k + 1][0], sums[k + 1][1]};
    const unsigned rows = static_cast<unsigned>(8 * k) * Tile::kRowBytes;
    multiply_registers<T>(reinterpret_cast<float(&)[kFirst][4]>(c[0]), left,
                          descriptor::behind(right, rows), adds || k > 0);
    if constexpr (kRest > 0) {
      multiply_registers<T>(
          reinterpret_cast<float(&)[kRest][4]>(c[kFirst]), left,
          descriptor::behind(right, 8 * kFirst / Tile::kPanel * kPanelBytes + rows), adds || k > 0);
    }
  }
  products_issued();
}

// The stages of a tile that comes again and again: which one, and its barriers' parity.
template <int kStages>
struct Stages {
  Barrier full[kStages], empty[kStages];

  __device__ void init_all(unsigned writers = 1, unsigned readers = kConsumerWarps) {
    for (int i = 0; i < kStages; ++i) {
      init(full[i], writers);
      init(empty[i], readers);
    }
  }
  // Who writes: waits until tile i may be written over the one that was there.
  __device__ void wait_to_write(int i) {
    wait(empty[i % kStages], static_cast<unsigned>(i / kStages + 1) % 2);
  }
  __device__ Barrier& begin(int i, unsigned bytes) {
    wait_to_write(i);
    arrive_expecting(full[i % kStages], bytes);
    return full[i % kStages];
  }
  // Of a warp that writes, by its own instructions for the async proxy.
  __device__ void written(int i) {
    written_for_products();
    __syncwarp();
    if (threadIdx.x % kWarp == 0) arrive(full[i % kStages]);
  }
  // Who reads.
  __device__ void wait_for(int i) {
    wait(full[i % kStages], static_cast<unsigned>(i / kStages) % 2);
  }
  // Of a warp the first lane comes: what the others have read must be behind it.
  __device__ void done_with(int i) {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) arrive(empty[i % kStages]);
  }
};

// A value that all lanes of a warp have, in a way that nvcc knows it too: what is computed from it,
// the descriptors of products above all, stays in registers of the warp.
template <typename V>
__device__ inline V of_warp(V value) {
  return __shfl_sync(kAllLanes, value, 0);
}

// Who a consuming thread is.
struct Consumer {
  int index, warp, lane;  // warp: within the warpgroup
};
__device__ inline Consumer consumer_of_thread() {
  const int warp = of_warp(static_cast<int>(threadIdx.x / kWarp));
  constexpr int kWarps = static_cast<int>(kWarpgroup / kWarp);
  return {warp / kWarps - 1, warp % kWarps, static_cast<int>(threadIdx.x % kWarp)};
}

// Writes the 64 rows of a consumer, the first of which is row `first` of the sequence, to `to`.
// `room`: the kOwnBytes of a tile that all its warps are done with.
template <typename T, int kDim>
__device__ inline void store_own_rows(const AttentionWork& w, const Consumer& consumer,
                                      const float (&c)[1][kDim / 8][4], const float (&factor)[1][2],
                                      unsigned char* room, T* to, int64_t stride, int first) {
  const int row = first + 16 * consumer.warp;
  if (row >= w.seq) return;
  T* const tile = reinterpret_cast<T*>(room) + 16 * consumer.warp * kRowElements<kDim>;
  store_rows<T, kDim>(c, factor, tile, to + row * stride, stride, w.seq - row, w.head_dim);
}

// Writes a warp's 16 rows of 64 columns times `factor`, the first `count` of them, by way of
// `room`: 2 KB that only this warp uses, its 16-byte pieces swizzled as in a panel.
template <typename T>
__device__ inline void store_octets(const float (*c)[4], float factor, unsigned char* room, T* to,
                                    int64_t stride, int count) {
  constexpr int kRowBytes = 128, kPieces = 8, kRowsAtOnce = static_cast<int>(kWarp) / kPieces;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  __syncwarp();  // whoever has read there before
  // Four 8 x 8 at a time, of which a lane has the address of a row.
  const int row_of_lane = lane % 16;
  MTL_UNROLL()
  for (int n = 0; n < 8; n += 2) {
    const int piece = (n + lane / 16) ^ (row_of_lane % 8);
    const uint32_t four[4] = {pack_two<T>(c[n][0] * factor, c[n][1] * factor),
                              pack_two<T>(c[n][2] * factor, c[n][3] * factor),
                              pack_two<T>(c[n + 1][0] * factor, c[n + 1][1] * factor),
                              pack_two<T>(c[n + 1][2] * factor, c[n + 1][3] * factor)};
    store_tiles(room + row_of_lane * kRowBytes + piece * 16, four);
  }
  __syncwarp();
  const int piece = lane % kPieces;
  MTL_UNROLL()
  for (int first = 0; first < 16; first += kRowsAtOnce) {
    const int row = first + lane / kPieces;
    if (row >= count) continue;
    *reinterpret_cast<uint4*>(to + row * stride + piece * 8) =
        *reinterpret_cast<const uint4*>(room + row * kRowBytes + (piece ^ row % 8) * 16);
  }
}

// Writes a consumer's 64 rows of kDim columns times `factor`, the first of which is row `first` of
// the sequence. `room`: 8 KB that all its warps are done with.
template <typename T, int kDim>
__device__ inline void store_panels(const AttentionWork& w, const Consumer& consumer,
                                    const float (&c)[kDim / 8][4], float factor,
                                    unsigned char* room, T* to, int64_t stride, int first) {
  constexpr int kColumns = 64, kRoomOfWarp = 2048;
  const int row = first + 16 * consumer.warp;
  if (row >= w.seq) return;
  MTL_UNROLL()
  for (int column = 0; column < kDim; column += kColumns) {
    store_octets(c + column / 8, factor, room + consumer.warp * kRoomOfWarp,
                 to + row * stride + column, stride, w.seq - row);
  }
}

// The tiles of keys that a block's queries see, the first of which is `first`. They come from the
// diagonal down: so only a kernel's first one needs to ask what lies beyond it.
struct KeyTiles {
  int first, count;
  __device__ int at(int i) const { return first + count - 1 - i; }
};
template <class Shape, bool kLimited>
__device__ inline KeyTiles seen_by_queries(const AttentionWork& w, const HeadPlace& place,
                                           int first) {
  const int end = (min(w.seq, first + Shape::kQueries) + Shape::kKeys - 1) / Shape::kKeys;
  int begin = 0;
  if constexpr (kLimited) begin = first_seen(w, place.row, first) / Shape::kKeys;
  return {begin, end - begin};
}

// The producer's work in forward and dQ, once the queries are under way. `before`: tiles that these
// stages have had.
template <int kDim, class Shape>
__device__ inline void bring_keys(const AttentionWork& w, const HeadPlace& place, int sequence,
                                  const KeyTiles& tiles, int before, const TensorMap& qkv,
                                  unsigned char* keys, unsigned char* values,
                                  typename Shape::Barriers& barriers) {
  const int key_head = w.heads + place.kv, value_head = key_head + w.kv_heads;
  for (int i = 0; i < tiles.count; ++i) {
    const int number = before + i, stage = number % Shape::kStages;
    const int k = tiles.at(i) * Shape::kKeys;
    copy_rows<kDim, Shape::kKeys>(keys + stage * Shape::kTile, qkv,
                                  barriers.keys.begin(number, Shape::kTile), key_head, k, sequence);
    copy_rows<kDim, Shape::kKeys>(values + stage * Shape::kTile, qkv,
                                  barriers.values.begin(number, Shape::kTile), value_head, k,
                                  sequence);
  }
}

// --- host

template <typename T>
inline constexpr bool kIsBf16 = std::is_same_v<T, Bf16>;

// Heads of `dim` columns beside each other, in boxes of so many rows.
template <typename T, int kDim>
TensorMap map_of_heads(const AttentionWork& w, const void* data, int heads, int dim,
                       int64_t row_stride, int rows) {
  return tensor_map({.data = data,
                     .batch = w.batch,
                     .seq = w.seq,
                     .heads = heads,
                     .dim = dim,
                     .row_stride = row_stride,
                     .is_bf16 = kIsBf16<T>,
                     .rows = rows,
                     .panel = Panels<kDim>::kPanel});
}
// Q, K and V, where all have as many columns; else Q with K, and V.
template <typename T, int kDim>
TensorMap map_of_qkv(const AttentionWork& w) {
  return map_of_heads<T, kDim>(w, w.qkv, w.heads + 2 * w.kv_heads, w.head_dim, w.row_stride,
                               kBoxRows);
}
template <typename T, int kDim>
TensorMap map_of_keys(const AttentionWork& w, int rows = kBoxRows) {
  return map_of_heads<T, kDim>(w, w.qkv, w.heads + w.kv_heads, w.head_dim, w.row_stride, rows);
}
template <typename T, int kDim>
TensorMap map_of_values(const AttentionWork& w, int rows = kBoxRows) {
  const T* const values =
      static_cast<const T*>(w.qkv) + static_cast<int64_t>(w.heads + w.kv_heads) * w.head_dim;
  return map_of_heads<T, kDim>(w, values, w.kv_heads, w.value_dim, w.row_stride, rows);
}
template <typename T, int kDim>
TensorMap map_of_dout(const AttentionWork& w, int rows = kBoxRows) {
  return map_of_heads<T, kDim>(w, w.dout, w.heads, w.value_dim, w.out_stride, rows);
}

// body(T{}, head_dim, whether queries see only the newer keys, whether scores are capped) of a call
// that fits. With a cap there is one kernel for both, of the heads that takes_caps() says.
template <typename Body>
void with_form(const AttentionWork& w, DType dtype, Body body) {
  const auto with_type = [&](auto dim, auto limited, auto caps) {
    if (dtype == DType::bf16) {
      body(Bf16{}, dim, limited, caps);
    } else {
      body(Half{}, dim, limited, caps);
    }
  };
  with_panel_dim(w.head_dim, [&](auto dim) {
    if constexpr (kernel_scratch::takes_caps(decltype(dim)::value)) {
      if (w.inner != 0) return with_type(dim, std::true_type{}, std::true_type{});
    }
    with_limits(w, [&](auto limited) { with_type(dim, limited, std::false_type{}); });
  });
}

// body(T{}, head_dim, value_dim, whether scores are capped) of a call of heads beyond 128 that
// fits: whether queries see only the newer keys is for the kernel to ask, as in attention_tiles.h.
template <typename Body>
void with_wide_form(const AttentionWork& w, DType dtype, Body body) {
  const auto with_dims = [&](auto type) {
    const std::integral_constant<int, 256> wide = {};
    if (w.head_dim == 192) {
      body(type, std::integral_constant<int, 192>{}, std::integral_constant<int, 128>{},
           std::false_type{});
    } else if (w.inner != 0) {
      body(type, wide, wide, std::true_type{});
    } else {
      body(type, wide, wide, std::false_type{});
    }
  };
  if (dtype == DType::bf16) {
    with_dims(Bf16{});
  } else {
    with_dims(Half{});
  }
}

}  // namespace mtl::cuda::warpgroups
