// Attention on Hopper: the products of whole warpgroups (wgmma), fed by the copy engine.
//
// A block has three warpgroups. One thread of the first does nothing but ask the copy engine for
// tiles, two stages ahead; the other two own 64 rows each (queries, or keys in dK/dV) and walk over
// the tiles. All operands but those that are sums of an earlier product are read from shared memory
// as the copy engine has left them there. A stage has two barriers: `full` (its bytes have come)
// and `empty` (all consuming warps are done with it).
//
// Tensor cores and exponentials run side by side in two ways (arXiv 2407.08608): within a warpgroup
// a product is issued before the arithmetic that does not need it, and in forward the two
// warpgroups take turns at issuing, so that one's products run under the other's softmax.
#include <type_traits>

#include "runtime/device/cuda/attention_scores.h"
#include "runtime/device/cuda/attention_warpgroups.h"
#include "runtime/device/cuda/warpgroup.h"

namespace mtl::cuda {
namespace {

constexpr int kConsumers = 2, kThreads = (1 + kConsumers) * static_cast<int>(kWarpgroup);
constexpr int kConsumerThreads = kConsumers * static_cast<int>(kWarpgroup);
constexpr int kConsumerWarps = kConsumerThreads / static_cast<int>(kWarp);
constexpr int kRows = 64;     // of a consumer
constexpr int kBoxRows = 32;  // of what the copy engine brings at a time
// Of 65,536 / 384 = 170 registers a thread, the producer keeps 24 and leaves the rest.
constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
// Barriers of the hardware: a consumer's turn, and its own threads.
constexpr int kTurn = 1, kOwnThreads = kTurn + kConsumers;

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
constexpr unsigned kAlignment = 1024;
__device__ inline unsigned char* aligned_shared(unsigned char* shared) {
  return shared + (kAlignment - shared_address(shared) % kAlignment) % kAlignment;
}

// Starts copying kTileRows rows from `row` on.
template <int kDim, int kTileRows>
__device__ inline void copy_rows(unsigned char* tile, const TensorMap& map, Barrier& barrier,
                                 int head, int row, int sequence) {
  using Tile = Panels<kDim>;
  MTL_UNROLL(1)
  for (int panel = 0; panel < Tile::kCount; ++panel) {
    MTL_UNROLL(1)
    for (int first = 0; first < kTileRows; first += kBoxRows) {
      copy_box(tile + panel * Tile::panel_bytes(kTileRows) + first * Tile::kRowBytes, map, barrier,
               panel * Tile::kPanel, head, row + first, sequence);
    }
  }
}

// Issues c = A B^T over kDim: A the 64 rows of a tile, B the 8 kN rows of another.
template <typename T, int kDim, int kN>
__device__ inline void multiply_rows(float (&c)[kN][4], uint32_t a, uint32_t b) {
  using Tile = Panels<kDim>;
  products_begin();
  MTL_UNROLL()
  for (int k = 0; k < kDim; k += 16) {
    const auto panel = static_cast<unsigned>(k / Tile::kPanel);
    const auto column = static_cast<unsigned>(k % Tile::kPanel * 2);
    multiply_shared<T>(c, rows_operand<Tile::kPanel>(a + panel * Tile::panel_bytes(kRows) + column),
                       rows_operand<Tile::kPanel>(b + panel * Tile::panel_bytes(8 * kN) + column),
                       k > 0);
  }
  products_issued();
}

// Issues c += A B: A is 64 rows of 8 kN sums, rounded, B the 8 kN rows of a tile.
template <typename T, int kDim, int kN>
__device__ inline void multiply_sums(float (&c)[kDim / 8][4], const uint32_t (&sums)[kN][2],
                                     uint32_t b) {
  using Tile = Panels<kDim>;
  products_begin();
  MTL_UNROLL()
  for (int k = 0; k < kN; k += 2) {
    const uint32_t left[4] = {sums[k][0], sums[k][1], sums[k + 1][0], sums[k + 1][1]};
    multiply_registers<T>(
        c, left,
        columns_operand<Tile::kPanel>(b + static_cast<unsigned>(8 * k) * Tile::kRowBytes,
                                      Tile::panel_bytes(8 * kN)),
        true);
  }
  products_issued();
}

// The stages of a tile that comes again and again: which one, and its barriers' parity.
template <int kStages>
struct Stages {
  Barrier full[kStages], empty[kStages];

  __device__ void init_all() {
    for (int i = 0; i < kStages; ++i) {
      init(full[i], 1);
      init(empty[i], kConsumerWarps);
    }
  }
  // The producer's: waits until tile i may be written over the one that was there.
  __device__ Barrier& begin(int i, unsigned bytes) {
    wait(empty[i % kStages], static_cast<unsigned>(i / kStages + 1) % 2);
    arrive_expecting(full[i % kStages], bytes);
    return full[i % kStages];
  }
  // The consumers'.
  __device__ void wait_for(int i) {
    wait(full[i % kStages], static_cast<unsigned>(i / kStages) % 2);
  }
  __device__ void done_with(int i) {
    if (threadIdx.x % kWarp == 0) arrive(empty[i % kStages]);
  }
};

// Who a consuming thread is.
struct Consumer {
  int index, warp, lane;  // warp: within the warpgroup
};
__device__ inline Consumer consumer_of_thread() {
  const int thread = static_cast<int>(threadIdx.x % kWarpgroup);
  return {static_cast<int>(threadIdx.x / kWarpgroup) - 1, thread / static_cast<int>(kWarp),
          thread % static_cast<int>(kWarp)};
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

// The tiles of keys that a block's queries see, the first of which is `first`.
struct KeyTiles {
  int first, count;
};
template <class Shape, bool kLimited>
__device__ inline KeyTiles seen_by_queries(const AttentionWork& w, const HeadPlace& place,
                                           int first) {
  const int end = (min(w.seq, first + Shape::kQueries) + Shape::kKeys - 1) / Shape::kKeys;
  int begin = 0;
  if constexpr (kLimited) begin = first_seen(w, place.row, first) / Shape::kKeys;
  return {begin, end - begin};
}

// The producer's work in forward and dQ, once the queries are under way.
template <int kDim, class Shape>
__device__ inline void bring_keys(const AttentionWork& w, const HeadPlace& place, int sequence,
                                  const KeyTiles& tiles, const TensorMap& qkv, unsigned char* keys,
                                  unsigned char* values, typename Shape::Barriers& barriers) {
  const int key_head = w.heads + place.kv, value_head = key_head + w.kv_heads;
  for (int i = 0; i < tiles.count; ++i) {
    const int stage = i % Shape::kStages, k = (tiles.first + i) * Shape::kKeys;
    copy_rows<kDim, Shape::kKeys>(keys + stage * Shape::kTile, qkv,
                                  barriers.keys.begin(i, Shape::kTile), key_head, k, sequence);
    copy_rows<kDim, Shape::kKeys>(values + stage * Shape::kTile, qkv,
                                  barriers.values.begin(i, Shape::kTile), value_head, k, sequence);
  }
}

// --- forward

template <int kDim>
struct ForwardShape {
  static constexpr int kQueries = kConsumers * kRows, kKeys = 128, kStages = 2;
  static constexpr unsigned kTile = Panels<kDim>::tile_bytes(kKeys);
  struct Barriers {
    Barrier queries;
    Stages<kStages> keys, values;
  };
  static constexpr size_t kSharedBytes =
      kConsumers * Panels<kDim>::kOwnBytes + 2 * kStages * kTile + sizeof(Barriers) + kAlignment;
};

template <typename T, int kDim, bool kLimited>
__global__ void __launch_bounds__(kThreads, 1)
    attention_forward_warpgroups(AttentionWork w, int tiles,
                                 const MTL_GRID_CONSTANT TensorMap qkv) {
  using Shape = ForwardShape<kDim>;
  using Tile = Panels<kDim>;
  constexpr int kN = Shape::kKeys / 8;
  MTL_DYNAMIC_SHARED(shared);
  unsigned char* const queries = aligned_shared(shared);
  unsigned char* const keys = queries + kConsumers * Tile::kOwnBytes;
  unsigned char* const values = keys + Shape::kStages * Shape::kTile;
  auto& barriers =
      *reinterpret_cast<typename Shape::Barriers*>(values + Shape::kStages * Shape::kTile);

  // The last queries see the most keys: they start first.
  const int heads = w.batch * w.heads, head = static_cast<int>(blockIdx.x) % heads;
  const int first = (tiles - 1 - static_cast<int>(blockIdx.x) / heads) * Shape::kQueries;
  const int sequence = head / w.heads;
  const HeadPlace place = place_of(w, sequence, head % w.heads);
  const KeyTiles seen = seen_by_queries<Shape, kLimited>(w, place, first);

  if (threadIdx.x == 0) {
    fetch_map(qkv);
    init(barriers.queries, 1);
    barriers.keys.init_all();
    barriers.values.init_all();
    barriers_made();
  }
  __syncthreads();

  if (threadIdx.x < kWarpgroup) {
    give_registers<kProducerRegisters>();
    if (threadIdx.x == 0) {
      arrive_expecting(barriers.queries, kConsumers * Tile::tile_bytes(kRows));
      for (int i = 0; i < kConsumers; ++i) {
        copy_rows<kDim, kRows>(queries + i * Tile::kOwnBytes, qkv, barriers.queries, place.head,
                               first + i * kRows, sequence);
      }
      bring_keys<kDim, Shape>(w, place, sequence, seen, qkv, keys, values, barriers);
    }
  } else {
    take_registers<kConsumerRegisters>();
    const Consumer consumer = consumer_of_thread();
    unsigned char* const own = queries + consumer.index * Tile::kOwnBytes;
    const int own_query = first + consumer.index * kRows;
    const int warp_query = own_query + 16 * consumer.warp;
    const int q = warp_query + consumer.lane / 4;  // of this lane's first sums
    const float slope = w.slopes != nullptr ? w.slopes[place.head] : 0.0f;
    const auto keys_at = [&](int i) {
      return shared_address(keys + i % Shape::kStages * Shape::kTile);
    };
    const auto values_at = [&](int i) {
      return shared_address(values + i % Shape::kStages * Shape::kTile);
    };

    float o[1][kDim / 8][4];
    clear(o);
    RunningSoftmax<1> softmax;
    softmax.clear();
    PackedSums<1, kN> p;
    // Scores of tile i become weights; returns whether o is to be scaled by `before`.
    const auto weigh = [&](int i, float(&s)[1][kN][4], float(&before)[1][2]) {
      const int k = (seen.first + i) * Shape::kKeys, own_key = k + consumer.lane % 4 * 2;
      const float factor =
          finish_scores(w, slope, s, own_key - q, k + Shape::kKeys - 1 > warp_query);
      if constexpr (kLimited) hide_keys(w, place.row, s, q, own_key, factor);
      return softmax.add(s, factor, before);
    };
    const auto pack = [&](int i, float(&s)[1][kN][4]) {
      const int64_t k = int64_t{seen.first + i} * Shape::kKeys;
      pack_weights<T>(w, place.first + static_cast<uint64_t>(int64_t{warp_query} * w.seq + k), s,
                      p);
    };

    wait(barriers.queries, 0);
    {
      float s[1][kN][4], before[1][2];
      barriers.keys.wait_for(0);
      multiply_rows<T, kDim>(s[0], shared_address(own), keys_at(0));
      products_wait<0>();
      hold(s[0]);
      barriers.keys.done_with(0);
      weigh(0, s, before);
      pack(0, s);
    }
    if (consumer.index == 1 && seen.count > 1) arrive_some(kTurn, kConsumerThreads);
    for (int i = 1; i < seen.count; ++i) {
      float s[1][kN][4], before[1][2];
      barriers.keys.wait_for(i);
      sync_some(kTurn + consumer.index, kConsumerThreads);
      multiply_rows<T, kDim>(s[0], shared_address(own), keys_at(i));
      barriers.values.wait_for(i - 1);
      multiply_sums<T, kDim>(o[0], p[0], values_at(i - 1));
      // The last turn is the second one's.
      if (consumer.index == 0 || i + 1 < seen.count) {
        arrive_some(kTurn + 1 - consumer.index, kConsumerThreads);
      }
      products_wait<1>();
      hold(s[0]);
      barriers.keys.done_with(i);
      const bool rescale = weigh(i, s, before);
      products_wait<0>();
      hold(o[0]);
      barriers.values.done_with(i - 1);
      if (rescale) scale_rows(o, before);
      pack(i, s);
    }
    barriers.values.wait_for(seen.count - 1);
    multiply_sums<T, kDim>(o[0], p[0], values_at(seen.count - 1));
    products_wait<0>();
    hold(o[0]);

    float factor[1][2];
    softmax.finish(w, place, q, factor);
    sync_some(kOwnThreads + consumer.index, static_cast<int>(kWarpgroup));
    store_own_rows<T, kDim>(
        w, consumer, o, factor, own,
        static_cast<T*>(w.out) + place.row * w.out_stride + query_column(w, place), w.out_stride,
        own_query);
  }
}

// --- dQ: S = Q K^T, dP = dO V^T, dS = P (dP - delta), dQ = scale dS K

template <int kDim>
struct QueryShape {
  // As many keys as registers allow: scores, dP, dS and dQ are there at the same time.
  static constexpr int kQueries = kConsumers * kRows, kKeys = kDim == 128 ? 96 : 128, kStages = 2;
  static constexpr unsigned kTile = Panels<kDim>::tile_bytes(kKeys);
  struct Barriers {
    Barrier queries;
    Stages<kStages> keys, values;
  };
  static constexpr size_t kSharedBytes = 2 * kConsumers * Panels<kDim>::kOwnBytes +
                                         2 * kStages * kTile + sizeof(Barriers) + kAlignment;
};

template <typename T, int kDim, bool kLimited>
__global__ void __launch_bounds__(kThreads, 1)
    attention_query_warpgroups(AttentionWork w, int tiles, const MTL_GRID_CONSTANT TensorMap qkv,
                               const MTL_GRID_CONSTANT TensorMap dout) {
  using Shape = QueryShape<kDim>;
  using Tile = Panels<kDim>;
  constexpr int kN = Shape::kKeys / 8;
  MTL_DYNAMIC_SHARED(shared);
  unsigned char* const queries = aligned_shared(shared);
  unsigned char* const douts = queries + kConsumers * Tile::kOwnBytes;
  unsigned char* const keys = douts + kConsumers * Tile::kOwnBytes;
  unsigned char* const values = keys + Shape::kStages * Shape::kTile;
  auto& barriers =
      *reinterpret_cast<typename Shape::Barriers*>(values + Shape::kStages * Shape::kTile);

  // The last queries see the most keys: they start first.
  const int heads = w.batch * w.heads, head = static_cast<int>(blockIdx.x) % heads;
  const int first = (tiles - 1 - static_cast<int>(blockIdx.x) / heads) * Shape::kQueries;
  const int sequence = head / w.heads;
  const HeadPlace place = place_of(w, sequence, head % w.heads);
  const KeyTiles seen = seen_by_queries<Shape, kLimited>(w, place, first);

  if (threadIdx.x == 0) {
    fetch_map(qkv);
    fetch_map(dout);
    init(barriers.queries, 1);
    barriers.keys.init_all();
    barriers.values.init_all();
    barriers_made();
  }
  __syncthreads();

  if (threadIdx.x < kWarpgroup) {
    give_registers<kProducerRegisters>();
    if (threadIdx.x == 0) {
      arrive_expecting(barriers.queries, 2 * kConsumers * Tile::tile_bytes(kRows));
      for (int i = 0; i < kConsumers; ++i) {
        const int row = first + i * kRows;
        copy_rows<kDim, kRows>(queries + i * Tile::kOwnBytes, qkv, barriers.queries, place.head,
                               row, sequence);
        copy_rows<kDim, kRows>(douts + i * Tile::kOwnBytes, dout, barriers.queries, place.head, row,
                               sequence);
      }
      bring_keys<kDim, Shape>(w, place, sequence, seen, qkv, keys, values, barriers);
    }
  } else {
    take_registers<kConsumerRegisters>();
    const Consumer consumer = consumer_of_thread();
    unsigned char* const own = queries + consumer.index * Tile::kOwnBytes;
    const uint32_t own_queries = shared_address(own);
    const uint32_t own_douts = shared_address(douts + consumer.index * Tile::kOwnBytes);
    const int own_query = first + consumer.index * kRows;
    const int warp_query = own_query + 16 * consumer.warp;
    const int q = warp_query + consumer.lane / 4;  // of this lane's first sums
    const float slope = w.slopes != nullptr ? w.slopes[place.head] : 0.0f;
    // There is padding behind the last query.
    const QueryStats* const from = w.stats + place.of_all * w.stats_stride + q;
    const QueryStats stats[1][2] = {{from[0], from[8]}};

    float dq[1][kDim / 8][4];
    clear(dq);
    PackedSums<1, kN> ds;
    wait(barriers.queries, 0);
    for (int i = 0; i < seen.count; ++i) {
      const unsigned stage = static_cast<unsigned>(i % Shape::kStages) * Shape::kTile;
      const int k = (seen.first + i) * Shape::kKeys, own_key = k + consumer.lane % 4 * 2;
      float s[1][kN][4], dp[1][kN][4];
      barriers.keys.wait_for(i);
      multiply_rows<T, kDim>(s[0], own_queries, shared_address(keys + stage));
      barriers.values.wait_for(i);
      multiply_rows<T, kDim>(dp[0], own_douts, shared_address(values + stage));
      products_wait<1>();  // the scores, and dQ of the tile before
      hold(s[0]);
      if (i > 0) barriers.keys.done_with(i - 1);
      const float factor =
          finish_scores(w, slope, s, own_key - q, k + Shape::kKeys - 1 > warp_query);
      if constexpr (kLimited) hide_keys(w, place.row, s, q, own_key, factor);
      query_weights(s, factor, stats);
      products_wait<0>();
      hold(dp[0]);
      hold(dq[0]);
      barriers.values.done_with(i);
      pack_query_gradients<T>(w,
                              place.first + static_cast<uint64_t>(int64_t{warp_query} * w.seq + k),
                              s, dp, stats, ds);
      multiply_sums<T, kDim>(dq[0], ds[0], shared_address(keys + stage));
    }
    products_wait<0>();
    hold(dq[0]);

    const float scale[1][2] = {{w.scale, w.scale}};
    sync_some(kOwnThreads + consumer.index, static_cast<int>(kWarpgroup));
    store_own_rows<T, kDim>(
        w, consumer, dq, scale, own,
        static_cast<T*>(w.dqkv) + place.row * w.row_stride + query_column(w, place), w.row_stride,
        own_query);
  }
}

// --- dK and dV, over the query heads of a group in order, transposed so that the sums of keys x
// queries are operands A: S^T = K Q^T, dP^T = V dO^T, dV = P^T dO, dK = scale dS^T Q

template <int kDim>
struct KeyShape {
  // As many queries as registers allow beside dK and dV.
  static constexpr int kKeys = kConsumers * kRows, kQueries = kDim == 64 ? 96 : 64, kStages = 3;
  static constexpr unsigned kTile = Panels<kDim>::tile_bytes(kQueries);
  static constexpr unsigned kStatsBytes = sizeof(QueryStats) * kQueries;
  struct Barriers {
    Barrier keys;
    Stages<kStages> queries;
  };
  static constexpr size_t kSharedBytes = 2 * kConsumers * Panels<kDim>::kOwnBytes +
                                         kStages * (2 * kTile + kStatsBytes) + sizeof(Barriers) +
                                         kAlignment;
};

template <typename T, int kDim, bool kLimited>
__global__ void __launch_bounds__(kThreads, 1)
    attention_key_warpgroups(AttentionWork w, const MTL_GRID_CONSTANT TensorMap qkv,
                             const MTL_GRID_CONSTANT TensorMap dout) {
  using Shape = KeyShape<kDim>;
  using Tile = Panels<kDim>;
  constexpr int kN = Shape::kQueries / 8;
  MTL_DYNAMIC_SHARED(shared);
  unsigned char* const keys = aligned_shared(shared);
  unsigned char* const values = keys + kConsumers * Tile::kOwnBytes;
  unsigned char* const queries = values + kConsumers * Tile::kOwnBytes;
  unsigned char* const douts = queries + Shape::kStages * Shape::kTile;
  auto* const stats = reinterpret_cast<QueryStats*>(douts + Shape::kStages * Shape::kTile);
  auto& barriers =
      *reinterpret_cast<typename Shape::Barriers*>(stats + Shape::kStages * Shape::kQueries);

  // The first keys are seen by the most queries: they start first.
  const int heads = w.batch * w.kv_heads, head = static_cast<int>(blockIdx.x) % heads;
  const int first = static_cast<int>(blockIdx.x) / heads * Shape::kKeys;
  const int sequence = head / w.kv_heads, first_head = head % w.kv_heads * w.group;
  const HeadPlace first_place = place_of(w, sequence, first_head);
  const int first_tile = first / Shape::kQueries;
  int queries_end = w.seq;
  if constexpr (kLimited) {
    queries_end = end_of_seeing(w, first_place.row, min(first + Shape::kKeys, w.seq) - 1);
  }
  // Tiles of a query head, and of all of the group.
  const int tiles = (queries_end + Shape::kQueries - 1) / Shape::kQueries - first_tile;
  const int count = tiles * w.group;

  if (threadIdx.x == 0) {
    fetch_map(qkv);
    fetch_map(dout);
    init(barriers.keys, 1);
    barriers.queries.init_all();
    barriers_made();
  }
  __syncthreads();

  if (threadIdx.x < kWarpgroup) {
    give_registers<kProducerRegisters>();
    if (threadIdx.x == 0) {
      const int key_head = w.heads + first_place.kv, value_head = key_head + w.kv_heads;
      arrive_expecting(barriers.keys, 2 * kConsumers * Tile::tile_bytes(kRows));
      for (int i = 0; i < kConsumers; ++i) {
        const int row = first + i * kRows;
        copy_rows<kDim, kRows>(keys + i * Tile::kOwnBytes, qkv, barriers.keys, key_head, row,
                               sequence);
        copy_rows<kDim, kRows>(values + i * Tile::kOwnBytes, qkv, barriers.keys, value_head, row,
                               sequence);
      }
      int member = 0, tile = first_tile;
      for (int i = 0; i < count; ++i) {
        const int stage = i % Shape::kStages, q = tile * Shape::kQueries;
        Barrier& full = barriers.queries.begin(i, 2 * Shape::kTile + Shape::kStatsBytes);
        copy_rows<kDim, Shape::kQueries>(queries + stage * Shape::kTile, qkv, full,
                                         first_head + member, q, sequence);
        copy_rows<kDim, Shape::kQueries>(douts + stage * Shape::kTile, dout, full,
                                         first_head + member, q, sequence);
        copy_bytes(stats + stage * Shape::kQueries,
                   w.stats + (first_place.of_all + member) * w.stats_stride + q, Shape::kStatsBytes,
                   full);
        if (++tile == first_tile + tiles) {
          tile = first_tile;
          ++member;
        }
      }
    }
  } else {
    take_registers<kConsumerRegisters>();
    const Consumer consumer = consumer_of_thread();
    unsigned char* const key_room = keys + consumer.index * Tile::kOwnBytes;
    unsigned char* const value_room = values + consumer.index * Tile::kOwnBytes;
    const uint32_t own_keys = shared_address(key_room), own_values = shared_address(value_room);
    const int own_key = first + consumer.index * kRows;
    const int warp_key = own_key + 16 * consumer.warp;

    float dk[1][kDim / 8][4], dv[1][kDim / 8][4];
    clear(dk);
    clear(dv);
    uint32_t p[kN][2], ds[kN][2];
    wait(barriers.keys, 0);
    int member = 0, tile = first_tile;
    for (int i = 0; i < count; ++i) {
      const int stage = i % Shape::kStages, q = tile * Shape::kQueries;
      const uint32_t queries_at = shared_address(queries + stage * Shape::kTile);
      const uint32_t douts_at = shared_address(douts + stage * Shape::kTile);
      const QueryStats* const stats_at = stats + stage * Shape::kQueries;
      const HeadPlace place = place_of(w, sequence, first_head + member);
      const float slope = w.slopes != nullptr ? w.slopes[place.head] : 0.0f;
      if (++tile == first_tile + tiles) {
        tile = first_tile;
        ++member;
      }
      float s[kN][4], dp[kN][4];
      barriers.queries.wait_for(i);
      multiply_rows<T, kDim>(s, own_keys, queries_at);
      multiply_rows<T, kDim>(dp, own_values, douts_at);
      products_wait<1>();
      hold(s);
      Kept<kN> kept = {};
      if (w.keep_from != 0) {
        const int64_t element = int64_t{q} * w.seq + warp_key;
        kept = kept_of_sums<false, kN>(w, place.first + static_cast<uint64_t>(element));
      }
      MTL_UNROLL()
      for (int n = 0; n < kN; ++n) {
        key_weights<kLimited>(w, place.row, slope, q, warp_key, n, stats_of_columns(stats_at, n),
                              s[n]);
      }
      products_wait<0>();
      hold(dp);
      MTL_UNROLL()
      for (int n = 0; n < kN; ++n) {
        pack_key_sums<T>(w, kept, n, stats_of_columns(stats_at, n), s[n], dp[n], p[n], ds[n]);
      }
      multiply_sums<T, kDim>(dv[0], p, douts_at);
      multiply_sums<T, kDim>(dk[0], ds, queries_at);
      // With both sums under way beyond this place ptxas waits for every single product (C7515).
      // The other warpgroup's products run meanwhile.
      products_wait<0>();
      hold(dk[0]);
      hold(dv[0]);
      barriers.queries.done_with(i);
    }

    const float key_factor[1][2] = {{w.scale, w.scale}};
    const float value_factor[1][2] = {{w.keep_scale, w.keep_scale}};
    T* const to = static_cast<T*>(w.dqkv) + first_place.row * w.row_stride;
    sync_some(kOwnThreads + consumer.index, static_cast<int>(kWarpgroup));
    store_own_rows<T, kDim>(w, consumer, dk, key_factor, key_room, to + key_column(w, first_place),
                            w.row_stride, own_key);
    store_own_rows<T, kDim>(w, consumer, dv, value_factor, value_room,
                            to + value_column(w, first_place), w.row_stride, own_key);
  }
}

// --- host

template <typename T>
constexpr bool kIsBf16 = std::is_same_v<T, Bf16>;

template <typename T, int kDim>
TensorMap map_of_qkv(const AttentionWork& w) {
  return tensor_map({.data = w.qkv,
                     .batch = w.batch,
                     .seq = w.seq,
                     .heads = w.heads + 2 * w.kv_heads,
                     .dim = w.head_dim,
                     .row_stride = w.row_stride,
                     .is_bf16 = kIsBf16<T>,
                     .rows = kBoxRows,
                     .panel = Panels<kDim>::kPanel});
}
template <typename T, int kDim>
TensorMap map_of_dout(const AttentionWork& w) {
  return tensor_map({.data = w.dout,
                     .batch = w.batch,
                     .seq = w.seq,
                     .heads = w.heads,
                     .dim = w.head_dim,
                     .row_stride = w.out_stride,
                     .is_bf16 = kIsBf16<T>,
                     .rows = kBoxRows,
                     .panel = Panels<kDim>::kPanel});
}

// body(T{}, head_dim, whether queries see only the newer keys) of a call that fits.
template <typename Body>
void with_form(const AttentionWork& w, DType dtype, Body body) {
  with_tile_dim(w.head_dim, [&](auto dim) {
    with_limits(w, [&](auto limited) {
      if (dtype == DType::bf16) {
        body(Bf16{}, dim, limited);
      } else {
        body(Half{}, dim, limited);
      }
    });
  });
}

}  // namespace

void forward_by_warpgroups(Queue& queue, const AttentionWork& w, DType dtype) {
  with_form(w, dtype, [&](auto type, auto dim, auto limited) {
    using T = decltype(type);
    constexpr int kDim = decltype(dim)::value;
    using Shape = ForwardShape<kDim>;
    const int last = (w.seq + Shape::kQueries - 1) / Shape::kQueries;
    const int count = last - w.first_query / Shape::kQueries;
    launch(attention_forward_warpgroups<T, kDim, decltype(limited)::value>,
           dim3(static_cast<unsigned>(int64_t{count} * w.batch * w.heads)), dim3(kThreads),
           Shape::kSharedBytes, queue.stream(), w, last, map_of_qkv<T, kDim>(w));
  });
}

void backward_by_warpgroups(Queue& queue, const AttentionWork& w, DType dtype) {
  with_form(w, dtype, [&](auto type, auto dim, auto limited) {
    using T = decltype(type);
    constexpr int kDim = decltype(dim)::value;
    constexpr bool kLimited = decltype(limited)::value;
    using Keys = KeyShape<kDim>;
    using Queries = QueryShape<kDim>;
    static_assert(kMostQueries >= Keys::kQueries && kMostQueries >= Queries::kQueries);
    const TensorMap qkv = map_of_qkv<T, kDim>(w), dout = map_of_dout<T, kDim>(w);
    const int key_tiles = (w.seq + Keys::kKeys - 1) / Keys::kKeys;
    launch(attention_key_warpgroups<T, kDim, kLimited>,
           dim3(static_cast<unsigned>(int64_t{key_tiles} * w.batch * w.kv_heads)), dim3(kThreads),
           Keys::kSharedBytes, queue.stream(), w, qkv, dout);
    const int query_tiles = (w.seq + Queries::kQueries - 1) / Queries::kQueries;
    launch(attention_query_warpgroups<T, kDim, kLimited>,
           dim3(static_cast<unsigned>(int64_t{query_tiles} * w.batch * w.heads)), dim3(kThreads),
           Queries::kSharedBytes, queue.stream(), w, query_tiles, qkv, dout);
  });
}

}  // namespace mtl::cuda
