// Attention backward on Hopper (attention_panels.h) of heads beyond 128: one kernel for dQ and one
// for dK and dV, as in attention_backward_warpgroups.cu. dK and dV of heads of 256 have a kernel of
// another kind (attention_backward_paired_warpgroups.cu).
#include "runtime/device/cuda/attention_wide_backward.h"

namespace mtl::cuda {
namespace {

namespace wide_backward_kernels {

using namespace wide_backward;

// --- dQ: S = Q K^T, dP = dO V^T, dS = P (dP - delta), dQ = scale dS K

template <int kDim, int kValueDim>
struct QueryShape {
  // As many keys as registers and shared memory allow: the fewer there are, the more often a
  // product reads its 64 rows of Q and dO.
  static constexpr int kQueries = kConsumers * kRows, kKeys = kDim == 256 ? 48 : 64;
  static constexpr int kStages = kDim == 256 ? 2 : 3, kBox = kKeys % 32 == 0 ? 32 : 16;
  // Of a consumer, dO behind Q.
  static constexpr unsigned kOwnQueries = Panels<kDim>::tile_bytes(kRows);
  static constexpr unsigned kOwn = kOwnQueries + Panels<kValueDim>::tile_bytes(kRows);
  // Of a stage, V behind K.
  static constexpr unsigned kKeyTile = Panels<kDim>::tile_bytes(kKeys);
  static constexpr unsigned kValueTile = Panels<kValueDim>::tile_bytes(kKeys);
  static constexpr unsigned kStage = kKeyTile + kValueTile;
  struct Barriers {
    Barrier queries;
    Stages<kStages> keys, values;
  };
  static constexpr size_t kSharedBytes =
      kConsumers * kOwn + kStages * kStage + sizeof(Barriers) + kAlignment;
};

template <typename T, int kDim, int kValueDim, bool kCaps>
__global__ void __launch_bounds__(kThreads, 1)
    attention_wide_query_warpgroups(AttentionWork w, BlockOrder order,
                                    const MTL_GRID_CONSTANT TensorMap qk,
                                    const MTL_GRID_CONSTANT TensorMap v,
                                    const MTL_GRID_CONSTANT TensorMap dout) {
  using Shape = QueryShape<kDim, kValueDim>;
  constexpr int kN = Shape::kKeys / 8, kBox = Shape::kBox;
  MTL_DYNAMIC_SHARED(shared);
  unsigned char* const queries = aligned_shared(shared);
  unsigned char* const stages = queries + kConsumers * Shape::kOwn;
  auto& barriers =
      *reinterpret_cast<typename Shape::Barriers*>(stages + Shape::kStages * Shape::kStage);

  // The last queries see the most keys: they start first.
  const auto [head, from_last] = place_of_block(order, static_cast<int>(blockIdx.x));
  const int first = ((w.seq - 1) / Shape::kQueries - from_last) * Shape::kQueries;
  const int sequence = head / w.heads;
  know_pass(w);
  const HeadPlace place = place_of(w, sequence, head % w.heads);
  const KeyTiles seen = seen_by_queries<Shape, true>(w, place, first);

  if (threadIdx.x == 0) {
    fetch_map(qk);
    fetch_map(v);
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
      arrive_expecting(barriers.queries, kConsumers * Shape::kOwn);
      for (int i = 0; i < kConsumers; ++i) {
        unsigned char* const own = queries + i * Shape::kOwn;
        const int row = first + i * kRows;
        copy_rows<kDim, kRows, kBox>(own, qk, barriers.queries, place.head, row, sequence);
        copy_rows<kValueDim, kRows, kBox>(own + Shape::kOwnQueries, dout, barriers.queries,
                                          place.head, row, sequence);
      }
      for (int i = 0; i < seen.count; ++i) {
        unsigned char* const stage = stages + i % Shape::kStages * Shape::kStage;
        const int k = seen.at(i) * Shape::kKeys;
        copy_rows<kDim, Shape::kKeys, kBox>(stage, qk, barriers.keys.begin(i, Shape::kKeyTile),
                                            w.heads + place.kv, k, sequence);
        copy_rows<kValueDim, Shape::kKeys, kBox>(stage + Shape::kKeyTile, v,
                                                 barriers.values.begin(i, Shape::kValueTile),
                                                 place.kv, k, sequence);
      }
    }
  } else {
    take_registers<kConsumerRegisters>();
    const Consumer consumer = consumer_of_thread();
    unsigned char* const own = queries + consumer.index * Shape::kOwn;
    const uint32_t own_queries = shared_address(own);
    const uint32_t own_douts = own_queries + Shape::kOwnQueries;
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
      const uint32_t keys =
          shared_address(stages) + static_cast<unsigned>(i % Shape::kStages) * Shape::kStage;
      const int k = seen.at(i) * Shape::kKeys, own_key = k + consumer.lane % 4 * 2;
      float s[1][kN][4], dp[1][kN][4];
      barriers.keys.wait_for(i);
      multiply_rows<T, kDim>(s[0], own_queries, keys);
      barriers.values.wait_for(i);
      multiply_rows<T, kValueDim>(dp[0], own_douts, keys + Shape::kKeyTile);
      products_wait<1>();  // the scores, and dQ of the tile before
      hold(s[0]);
      if (i > 0) barriers.keys.done_with(i - 1);
      if constexpr (kCaps) cap_scores(w, s);
      const float factor =
          finish_scores(w, slope, s, own_key - q, k + Shape::kKeys - 1 > warp_query);
      hide_keys(w, place.row, s, q, own_key, factor);
      query_weights(s, factor, stats);
      if constexpr (kCaps) cap_query_weights(w, s, stats);
      products_wait<0>();
      hold(dp[0]);
      hold(dq[0]);
      barriers.values.done_with(i);
      pack_query_gradients<T>(w,
                              place.first + static_cast<uint64_t>(int64_t{warp_query} * w.seq + k),
                              s, dp, stats, ds);
      multiply_sums<T, kDim>(dq[0], ds[0], keys);
    }
    products_wait<0>();
    hold(dq[0]);

    sync_some(kOwnThreads + consumer.index, static_cast<int>(kWarpgroup));
    store_panels<T, kDim>(
        w, consumer, dq[0], w.scale, own,
        static_cast<T*>(w.dqkv) + place.row * w.row_stride + query_column(w, place), w.row_stride,
        own_query);
  }
}

// --- dK and dV of heads of 192, transposed so that the sums of keys x queries are operands A:
// S^T = K Q^T, dP^T = V dO^T, dV = P^T dO, dK = scale dS^T Q. From the last tile of queries to the
// first, of each the heads of the group in order.

template <int kDim, int kValueDim>
struct KeyShape {
  // As many queries as registers allow beside dK and dV.
  static constexpr int kKeys = kConsumers * kRows, kQueries = 48, kStages = 4, kBox = 16;
  // Of a consumer, V behind K.
  static constexpr unsigned kOwnKeys = Panels<kDim>::tile_bytes(kRows);
  static constexpr unsigned kOwn = kOwnKeys + Panels<kValueDim>::tile_bytes(kRows);
  // Of a stage, dO behind Q.
  static constexpr unsigned kQueryTile = Panels<kDim>::tile_bytes(kQueries);
  static constexpr unsigned kStage = kQueryTile + Panels<kValueDim>::tile_bytes(kQueries);
  static constexpr unsigned kStatsBytes = sizeof(TwoStats) * kQueries / 2;
  struct Barriers {
    Barrier keys;
    Stages<kStages> queries;
    Mask mask;  // of the pass: there are no registers to keep it in
  };
  static constexpr size_t kSharedBytes =
      kConsumers * kOwn + kStages * (kStage + kStatsBytes) + sizeof(Barriers) + kAlignment;
};

template <typename T, int kDim, int kValueDim>
__global__ void __launch_bounds__(kThreads, 1)
    attention_wide_key_warpgroups(AttentionWork w, BlockOrder order,
                                  const MTL_GRID_CONSTANT TensorMap qk,
                                  const MTL_GRID_CONSTANT TensorMap v,
                                  const MTL_GRID_CONSTANT TensorMap dout) {
  using Shape = KeyShape<kDim, kValueDim>;
  constexpr int kN = Shape::kQueries / 8, kBox = Shape::kBox;
  MTL_DYNAMIC_SHARED(shared);
  unsigned char* const keys = aligned_shared(shared);
  unsigned char* const stages = keys + kConsumers * Shape::kOwn;
  auto* const stats = reinterpret_cast<TwoStats*>(stages + Shape::kStages * Shape::kStage);
  auto& barriers =
      *reinterpret_cast<typename Shape::Barriers*>(stats + Shape::kStages * Shape::kQueries / 2);

  if (threadIdx.x == 0) {
    fetch_map(qk);
    fetch_map(v);
    fetch_map(dout);
    init(barriers.keys, 1);
    barriers.queries.init_all();
    barriers_made();
    if (w.keep_from != 0) barriers.mask = mask_of(w.dropout);
  }
  __syncthreads();

  const KeyTile<Shape> own = key_tile_of<Shape, true>(w, order, static_cast<int>(blockIdx.x));
  if (threadIdx.x < kWarpgroup) {
    give_registers<kProducerRegisters>();
    if (threadIdx.x == 0) {
      arrive_expecting(barriers.keys, kConsumers * Shape::kOwn);
      for (int i = 0; i < kConsumers; ++i) {
        unsigned char* const to = keys + i * Shape::kOwn;
        const int row = own.first + i * kRows;
        copy_rows<kDim, kRows, kBox>(to, qk, barriers.keys, w.heads + own.place.kv, row,
                                     own.sequence);
        copy_rows<kValueDim, kRows, kBox>(to + Shape::kOwnKeys, v, barriers.keys, own.place.kv, row,
                                          own.sequence);
      }
      QueryStep at = {0, own.last_tile};
      for (int i = 0; i < own.count; ++i) {
        const int stage = i % Shape::kStages, q = at.tile * Shape::kQueries;
        const int head = own.place.head + at.member;
        unsigned char* const to = stages + stage * Shape::kStage;
        Barrier& full = barriers.queries.begin(i, Shape::kStage + Shape::kStatsBytes);
        copy_rows<kDim, Shape::kQueries, kBox>(to, qk, full, head, q, own.sequence);
        copy_rows<kValueDim, Shape::kQueries, kBox>(to + Shape::kQueryTile, dout, full, head, q,
                                                    own.sequence);
        copy_bytes(stats + stage * Shape::kQueries / 2,
                   stats_from(w, own.place.of_all + at.member, q), Shape::kStatsBytes, full);
        at.advance(w.group);
      }
    }
  } else {
    take_registers<kConsumerRegisters>();
    const Consumer consumer = consumer_of_thread();
    unsigned char* const room = keys + consumer.index * Shape::kOwn;
    const uint32_t own_keys = shared_address(room), own_values = own_keys + Shape::kOwnKeys;
    const int own_key = own.first + consumer.index * kRows;
    const int warp_key = own_key + 16 * consumer.warp;

    float dk[kDim / 8][4], dv[kValueDim / 8][4];
    clear_sums(dk);
    clear_sums(dv);
    uint32_t p[kN][2], ds[kN][2];
    QueryStep at = {0, own.last_tile};
    wait(barriers.keys, 0);
    for (int i = 0; i < own.count; ++i) {
      const int stage = i % Shape::kStages, q = at.tile * Shape::kQueries;
      const uint32_t queries_at =
          shared_address(stages) + static_cast<unsigned>(stage) * Shape::kStage;
      const uint32_t douts_at = queries_at + Shape::kQueryTile;
      const TwoStats* const stats_at = stats + stage * Shape::kQueries / 2;
      const HeadPlace place = place_of(w, own.sequence, own.place.head + at.member);
      at.advance(w.group);
      float s[kN][4], dp[kN][4];
      barriers.queries.wait_for(i);
      multiply_rows<T, kDim>(s, own_keys, queries_at);
      multiply_rows<T, kValueDim>(dp, own_values, douts_at);
      products_wait<1>();
      hold(s);
      Kept<kN> kept = {};
      if (w.keep_from != 0) {
        const int64_t element = int64_t{q} * w.seq + warp_key;
        w.key = barriers.mask.key;
        kept = kept_of_sums<false, kN>(
            w, barriers.mask.first + place.first + static_cast<uint64_t>(element));
      }
      key_weights<true>(w, place, q, warp_key, stats_at, s);
      products_wait<0>();
      hold(dp);
      pack_key_sums<T>(w, kept, stats_at, s, dp, p, ds);
      multiply_sums<T, kValueDim>(dv, p, douts_at);
      multiply_sums<T, kDim>(dk, ds, queries_at);
      // Not under way beyond this place, as in attention_key_warpgroups.
      products_wait<0>();
      hold(dk);
      hold(dv);
      read_before_copies();  // the copy engine is to write where statistics were read
      barriers.queries.done_with(i);
    }

    T* const to = static_cast<T*>(w.dqkv) + own.place.row * w.row_stride;
    sync_some(kOwnThreads + consumer.index, static_cast<int>(kWarpgroup));
    store_panels<T, kDim>(w, consumer, dk, w.scale, room, to + key_column(w, own.place),
                          w.row_stride, own_key);
    store_panels<T, kValueDim>(w, consumer, dv, w.keep_scale, room,
                               to + value_column<true>(w, own.place), w.row_stride, own_key);
  }
}

template <typename T, int kDim, int kValueDim, bool kCaps>
void launch_queries(Queue& queue, const AttentionWork& w) {
  using Shape = QueryShape<kDim, kValueDim>;
  static_assert(kMostQueries >= Shape::kQueries);
  const WideMaps maps = wide_maps<T>(w, Shape::kBox);
  const BlockOrder order = order_of_queries(w, Shape::kQueries);
  launch(attention_wide_query_warpgroups<T, kDim, kValueDim, kCaps>, grid_of(order), dim3(kThreads),
         Shape::kSharedBytes, queue.stream(), w, order, maps.qk, maps.v, maps.dout);
}
template <typename T, int kDim, int kValueDim>
void launch_keys(Queue& queue, const AttentionWork& w) {
  using Shape = KeyShape<kDim, kValueDim>;
  static_assert(kMostQueries >= Shape::kQueries);
  const WideMaps maps = wide_maps<T>(w, Shape::kBox);
  const BlockOrder order = order_of_keys(w, Shape::kKeys);
  launch(attention_wide_key_warpgroups<T, kDim, kValueDim>, grid_of(order), dim3(kThreads),
         Shape::kSharedBytes, queue.stream(), w, order, maps.qk, maps.v, maps.dout);
}

}  // namespace wide_backward_kernels

}  // namespace

void wide_backward_by_warpgroups(Queue& queue, const AttentionWork& w, DType dtype) {
  warpgroups::with_wide_form(w, dtype, [&](auto type, auto dim, auto value_dim, auto caps) {
    using T = decltype(type);
    constexpr int kDim = decltype(dim)::value, kValueDim = decltype(value_dim)::value;
    if constexpr (kDim == 256) {
      paired_keys_by_warpgroups(queue, w, dtype);
    } else {
      wide_backward_kernels::launch_keys<T, kDim, kValueDim>(queue, w);
    }
    wide_backward_kernels::launch_queries<T, kDim, kValueDim, decltype(caps)::value>(queue, w);
  });
}

}  // namespace mtl::cuda
