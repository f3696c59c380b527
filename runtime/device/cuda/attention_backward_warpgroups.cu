// Attention backward on Hopper (attention_panels.h) by two kernels, one for dQ and one for dK and
// dV, which need no sums in memory (MTL_ATTENTION=split) and take heads of 96 too.
#include "runtime/device/cuda/attention_key_tiles.h"
#include "runtime/device/cuda/attention_warpgroups.h"
#include "runtime/device/cuda/ops.h"

namespace mtl::cuda {
namespace {

using namespace warpgroups;

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
    attention_query_warpgroups(AttentionWork w, BlockOrder order,
                               const MTL_GRID_CONSTANT TensorMap qkv,
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
  const auto [head, from_last] = place_of_block(order, static_cast<int>(blockIdx.x));
  const int first = ((w.seq - 1) / Shape::kQueries - from_last) * Shape::kQueries;
  const int sequence = head / w.heads;
  know_pass(w);
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
      bring_keys<kDim, Shape>(w, place, sequence, seen, 0, qkv, keys, values, barriers);
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
    const QueryStats stats[1][2] = {
        {stats_of_query(w, place.of_all, q), stats_of_query(w, place.of_all, q + 8)}};

    float dq[1][kDim / 8][4];
    clear(dq);
    PackedSums<1, kN> ds;
    wait(barriers.queries, 0);
    for (int i = 0; i < seen.count; ++i) {
      const unsigned stage = static_cast<unsigned>(i % Shape::kStages) * Shape::kTile;
      const int k = seen.at(i) * Shape::kKeys, own_key = k + consumer.lane % 4 * 2;
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

// --- dK and dV, transposed so that the sums of keys x queries are operands A: S^T = K Q^T,
// dP^T = V dO^T, dV = P^T dO, dK = scale dS^T Q. From the last tile of queries to the first, of
// each the heads of the group in order.

template <int kDim>
struct KeyShape {
  // As many queries as registers allow beside dK and dV.
  static constexpr int kKeys = kConsumers * kRows, kQueries = kDim == 64 ? 96 : 64, kStages = 3;
  static constexpr unsigned kKeyTile = 2 * kConsumers * Panels<kDim>::kOwnBytes;
  static constexpr unsigned kTile = Panels<kDim>::tile_bytes(kQueries);
  static constexpr unsigned kStatsBytes = sizeof(TwoStats) * kQueries / 2;
  struct Barriers {
    Barrier keys;
    Stages<kStages> queries;
    Mask mask;  // of the pass: there are no registers to keep it in
  };
  static constexpr size_t kSharedBytes =
      kKeyTile + kStages * (2 * kTile + kStatsBytes) + sizeof(Barriers) + kAlignment;
};

template <typename T, int kDim, bool kLimited>
__global__ void __launch_bounds__(kThreads, 1)
    attention_key_warpgroups(AttentionWork w, BlockOrder order,
                             const MTL_GRID_CONSTANT TensorMap qkv,
                             const MTL_GRID_CONSTANT TensorMap dout) {
  using Shape = KeyShape<kDim>;
  using Tile = Panels<kDim>;
  constexpr int kN = Shape::kQueries / 8;
  MTL_DYNAMIC_SHARED(shared);
  unsigned char* const keys = aligned_shared(shared);  // and values behind them
  unsigned char* const queries = keys + Shape::kKeyTile;
  unsigned char* const douts = queries + Shape::kStages * Shape::kTile;
  auto* const stats = reinterpret_cast<TwoStats*>(douts + Shape::kStages * Shape::kTile);
  auto& barriers =
      *reinterpret_cast<typename Shape::Barriers*>(stats + Shape::kStages * Shape::kQueries / 2);

  if (threadIdx.x == 0) {
    fetch_map(qkv);
    fetch_map(dout);
    init(barriers.keys, 1);
    barriers.queries.init_all();
    barriers_made();
    if (w.keep_from != 0) barriers.mask = mask_of(w.dropout);
  }
  __syncthreads();

  const KeyTile<Shape> own = key_tile_of<Shape, kLimited>(w, order, static_cast<int>(blockIdx.x));
  if (threadIdx.x < kWarpgroup) {
    give_registers<kProducerRegisters>();
    if (threadIdx.x == 0) {
      bring_key_tile<kDim>(w, own, qkv, keys, Tile::kOwnBytes, barriers.keys);
      int member = 0, tile = own.last_tile;
      for (int i = 0; i < own.count; ++i) {
        const int stage = i % Shape::kStages, q = tile * Shape::kQueries;
        Barrier& full = barriers.queries.begin(i, 2 * Shape::kTile + Shape::kStatsBytes);
        bring_query_tile<kDim>(w, own, member, q, qkv, dout, queries + stage * Shape::kTile,
                               douts + stage * Shape::kTile, stats + stage * Shape::kQueries / 2,
                               full);
        if (++member == w.group) {
          member = 0;
          --tile;
        }
      }
    }
  } else {
    take_registers<kConsumerRegisters>();
    const Consumer consumer = consumer_of_thread();
    const int own_key = own.first + consumer.index * kRows;
    const int warp_key = own_key + 16 * consumer.warp;
    unsigned char* const key_room = keys + consumer.index * Tile::kOwnBytes;
    unsigned char* const value_room = key_room + kConsumers * Tile::kOwnBytes;
    const uint32_t own_keys = shared_address(key_room), own_values = shared_address(value_room);

    float dk[1][kDim / 8][4], dv[1][kDim / 8][4];
    clear(dk);
    clear(dv);
    uint32_t p[kN][2], ds[kN][2];
    int member = 0, tile = own.last_tile;
    wait(barriers.keys, 0);
    for (int i = 0; i < own.count; ++i) {
      const int stage = i % Shape::kStages, q = tile * Shape::kQueries;
      const uint32_t queries_at = shared_address(queries + stage * Shape::kTile);
      const uint32_t douts_at = shared_address(douts + stage * Shape::kTile);
      const TwoStats* const stats_at = stats + stage * Shape::kQueries / 2;
      const HeadPlace place = place_of(w, own.sequence, own.place.head + member);
      if (++member == w.group) {
        member = 0;
        --tile;
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
        w.key = barriers.mask.key;
        kept = kept_of_sums<false, kN>(
            w, barriers.mask.first + place.first + static_cast<uint64_t>(element));
      }
      key_weights<kLimited>(w, place, q, warp_key, stats_at, s);
      products_wait<0>();
      hold(dp);
      pack_key_sums<T>(w, kept, stats_at, s, dp, p, ds);
      multiply_sums<T, kDim>(dv[0], p, douts_at);
      multiply_sums<T, kDim>(dk[0], ds, queries_at);
      // With both sums under way beyond this place ptxas waits for every single product (C7515).
      // The other warpgroup's products run meanwhile.
      products_wait<0>();
      hold(dk[0]);
      hold(dv[0]);
      read_before_copies();  // the copy engine is to write where statistics were read
      barriers.queries.done_with(i);
    }

    const float key_factor[1][2] = {{w.scale, w.scale}};
    const float value_factor[1][2] = {{w.keep_scale, w.keep_scale}};
    T* const to = static_cast<T*>(w.dqkv) + own.place.row * w.row_stride;
    sync_some(kOwnThreads + consumer.index, static_cast<int>(kWarpgroup));
    store_own_rows<T, kDim>(w, consumer, dk, key_factor, key_room, to + key_column(w, own.place),
                            w.row_stride, own_key);
    store_own_rows<T, kDim>(w, consumer, dv, value_factor, value_room,
                            to + value_column(w, own.place), w.row_stride, own_key);
  }
}

template <typename T, int kDim, bool kLimited>
void launch_two(Queue& queue, const AttentionWork& w) {
  using Keys = KeyShape<kDim>;
  using Queries = QueryShape<kDim>;
  static_assert(kMostQueries >= Keys::kQueries && kMostQueries >= Queries::kQueries);
  const TensorMap qkv = map_of_qkv<T, kDim>(w), dout = map_of_dout<T, kDim>(w);
  const BlockOrder keys = order_of_keys(w, Keys::kKeys);
  launch(attention_key_warpgroups<T, kDim, kLimited>, grid_of(keys), dim3(kThreads),
         Keys::kSharedBytes, queue.stream(), w, keys, qkv, dout);
  const BlockOrder queries = order_of_queries(w, Queries::kQueries);
  launch(attention_query_warpgroups<T, kDim, kLimited>, grid_of(queries), dim3(kThreads),
         Queries::kSharedBytes, queue.stream(), w, queries, qkv, dout);
}

}  // namespace

void backward_by_warpgroups(Queue& queue, const AttentionWork& w, DType dtype) {
  with_form(w, dtype, [&](auto type, auto dim, auto limited, auto caps) {
    if constexpr (!decltype(caps)::value) {
      launch_two<decltype(type), decltype(dim)::value, decltype(limited)::value>(queue, w);
    }
  });
}

}  // namespace mtl::cuda
