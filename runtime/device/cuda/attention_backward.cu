// Attention backward on tensor cores, a kernel for dK and dV and one for dQ, and which path a call
// takes. Why two: attention.h.
#include <algorithm>
#include <type_traits>

#include "runtime/device/attention_arguments.h"
#include "runtime/device/cuda/attention_rows.h"
#include "runtime/device/cuda/attention_tiles.h"
#include "runtime/device/cuda/attention_warpgroups.h"

namespace mtl::cuda {
namespace {

// kSmall: where a block has no more than 99 KiB of shared memory (sm_86, sm_89, sm_120).
template <int kDim, int kValueDim, bool kSmall>
struct QueryTiles {
  // A warp has 16 kM queries.
  static constexpr int kWarps = 4, kM = kDim > 128 || (kSmall && kDim == 128) ? 1 : 2;
  static constexpr int kQueries = kWarps * 16 * kM, kKeys = kDim == 256 ? 16 : 32;
  static constexpr int kThreads = kWarps * static_cast<int>(kWarp);
  static constexpr int kRow = kRowElements<kDim>, kValueRow = kRowElements<kValueDim>;
  // Q and dO, and two stages of K and V.
  static constexpr size_t kSharedBytes =
      sizeof(uint16_t) * (kRow + kValueRow) * (kQueries + 2 * kKeys);
};

// dQ of a tile of queries: S = Q K^T, dP = dO V^T, dS = P (dP - delta), dQ = scale dS K.
template <typename T, int kDim, int kValueDim, bool kSmall, bool kLimited>
__global__ void __launch_bounds__(QueryTiles<kDim, kValueDim, kSmall>::kThreads, 2)
    attention_query_tiles(AttentionWork w, BlockOrder order) {
  using Tiles = QueryTiles<kDim, kValueDim, kSmall>;
  constexpr int kM = Tiles::kM, kN = Tiles::kKeys / 8;
  constexpr bool kNarrow = kNarrowValues<kDim>;
  MTL_DYNAMIC_SHARED(shared);
  T* const queries = reinterpret_cast<T*>(shared);
  T* const douts = queries + Tiles::kQueries * Tiles::kRow;
  T* const stages = douts + Tiles::kQueries * Tiles::kValueRow;
  constexpr int kValues = Tiles::kKeys * Tiles::kRow;
  constexpr int kStage = kValues + Tiles::kKeys * Tiles::kValueRow;

  // The last queries see the most keys: they start first.
  const auto [head, from_last] = place_of_block(order, static_cast<int>(blockIdx.x));
  const int first = ((w.seq - 1) / Tiles::kQueries - from_last) * Tiles::kQueries;
  know_pass(w);
  const HeadPlace place = place_of(w, head / w.heads, head % w.heads);
  const T* const rows = static_cast<const T*>(w.qkv) + place.row * w.row_stride;
  const T* const key_rows = rows + key_column(w, place);
  const T* const value_rows = rows + value_column<kNarrow>(w, place);

  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int warp_row = warp * 16 * kM, warp_query = first + warp_row;
  const int q = warp_query + lane / 4;  // of this lane's first sums
  const LaneOffsets<kDim> offsets = lane_offsets<kDim>();
  const LaneOffsets<kValueDim> value_offsets = lane_offsets<kValueDim>();
  const float slope = w.slopes != nullptr ? w.slopes[place.head] : 0.0f;

  const auto copy_keys = [&](int tile, int stage) {
    const int k = tile * Tiles::kKeys;
    T* const to = stages + stage * kStage;
    copy_tile<kDim, Tiles::kKeys, Tiles::kThreads>(to, key_rows + k * w.row_stride, w.row_stride,
                                                   w.seq - k, w.head_dim);
    copy_tile<kValueDim, Tiles::kKeys, Tiles::kThreads>(to + kValues, value_rows + k * w.row_stride,
                                                        w.row_stride, w.seq - k,
                                                        value_dim_of<kNarrow>(w));
  };
  copy_tile<kDim, Tiles::kQueries, Tiles::kThreads>(
      queries, rows + first * w.row_stride + query_column(w, place), w.row_stride, w.seq - first,
      w.head_dim);
  copy_tile<kValueDim, Tiles::kQueries, Tiles::kThreads>(
      douts,
      static_cast<const T*>(w.dout) + (place.row + first) * w.out_stride +
          out_column<kNarrow>(w, place),
      w.out_stride, w.seq - first, value_dim_of<kNarrow>(w));
  int first_tile = 0;
  if constexpr (kLimited) first_tile = first_seen(w, place.row, first) / Tiles::kKeys;
  copy_keys(first_tile, first_tile % 2);
  copy_async_commit();

  float dq[kM][kDim / 8][4];
  clear(dq);
  const int key_tiles = (min(w.seq, first + Tiles::kQueries) + Tiles::kKeys - 1) / Tiles::kKeys;
  for (int tile = first_tile; tile < key_tiles; ++tile) {
    copy_async_wait<0>();
    __syncthreads();
    if (tile + 1 < key_tiles) {
      copy_keys(tile + 1, (tile + 1) % 2);
      copy_async_commit();
    }
    const int k = tile * Tiles::kKeys;
    if (k > warp_query + 16 * kM - 1 || warp_query >= w.seq) continue;
    const T* const keys = stages + tile % 2 * kStage;
    float s[kM][kN][4], dp[kM][kN][4];
    clear(s);
    multiply_rows<T, kDim>(s, queries + warp_row * Tiles::kRow + offsets.a, keys + offsets.b);
    clear(dp);
    multiply_rows<T, kValueDim>(dp, douts + warp_row * Tiles::kValueRow + value_offsets.a,
                                keys + kValues + value_offsets.b);
    cap_scores(w, s);
    const float factor =
        finish_scores(w, slope, s, k + lane % 4 * 2 - q, k + Tiles::kKeys - 1 > warp_query);
    if constexpr (kLimited) hide_keys(w, place.row, s, q, k + lane % 4 * 2, factor);
    // Read for each tile: registers are scarcer than loads from a cache. There is padding behind
    // the last query.
    QueryStats stats[kM][2];
    MTL_UNROLL()
    for (int m = 0; m < kM; ++m) {
      const int row = warp_query + 16 * m + lane / 4;
      stats[m][0] = stats_of_query(w, place.of_all, row);
      stats[m][1] = stats_of_query(w, place.of_all, row + 8);
    }
    query_weights(s, factor, stats);
    cap_query_weights(w, s, stats);
    PackedSums<kM, kN> ds;
    const int64_t element = int64_t{warp_query} * w.seq + k;
    pack_query_gradients<T>(w, place.first + static_cast<uint64_t>(element), s, dp, stats, ds);
    multiply_sums<T, kDim>(dq, ds, keys + offsets.a);
  }
  if (warp_query >= w.seq) return;
  float scale[kM][2];
  MTL_UNROLL()
  for (int m = 0; m < kM; ++m) scale[m][0] = scale[m][1] = w.scale;
  T* const to =
      static_cast<T*>(w.dqkv) + (place.row + warp_query) * w.row_stride + query_column(w, place);
  store_rows<T, kDim>(dq, scale, queries + warp_row * Tiles::kRow, to, w.row_stride,
                      w.seq - warp_query, w.head_dim);
}

// What a kernel adds up for its keys. A warp's registers do not hold dK and dV of heads of 256:
// these have a kernel for each, of which both compute the scores.
enum class KeySums { both, dk, dv };

template <int kDim, int kValueDim, bool kSmall>
struct KeyTiles {
  // A warp has 16 keys, and dK and dV of them.
  static constexpr int kWarps = kDim == 256                            ? (kSmall ? 3 : 4)
                                : kDim == 192 || (kSmall && kDim > 64) ? 4
                                                                       : 8;
  static constexpr int kKeys = kWarps * 16;
  static constexpr int kQueries = kDim == 256 ? 16 : kDim == 192 ? 32 : kDim == 128 ? 48 : 64;
  static constexpr int kThreads = kWarps * static_cast<int>(kWarp);
  static constexpr int kRow = kRowElements<kDim>, kValueRow = kRowElements<kValueDim>;
  // Q, dO and the statistics of a tile of queries.
  static constexpr size_t kStageBytes =
      sizeof(uint16_t) * (kRow + kValueRow) * kQueries + sizeof(TwoStats) * kQueries / 2;
  static constexpr size_t kSharedBytes =
      sizeof(uint16_t) * (kRow + kValueRow) * kKeys + 2 * kStageBytes;
};

// dK and dV of a tile of keys, over the query heads of their group, in order. Transposed, so that
// the sums of keys x queries are operands A: S^T = K Q^T, dP^T = V dO^T, dV = P^T dO,
// dK = scale dS^T Q.
template <typename T, int kDim, int kValueDim, bool kSmall, bool kLimited, KeySums kSums>
__global__ void __launch_bounds__(KeyTiles<kDim, kValueDim, kSmall>::kThreads, kDim > 128 ? 2 : 1)
    attention_key_tiles(AttentionWork w, BlockOrder order) {
  using Tiles = KeyTiles<kDim, kValueDim, kSmall>;
  constexpr int kN = Tiles::kQueries / 8;
  constexpr bool kNarrow = kNarrowValues<kDim>;
  constexpr bool kHasDk = kSums != KeySums::dv, kHasDv = kSums != KeySums::dk;
  MTL_DYNAMIC_SHARED(shared);
  T* const keys = reinterpret_cast<T*>(shared);
  T* const values = keys + Tiles::kKeys * Tiles::kRow;
  unsigned char* const stages =
      shared + sizeof(T) * (Tiles::kRow + Tiles::kValueRow) * Tiles::kKeys;
  // Elements into a stage.
  constexpr int kDouts = Tiles::kQueries * Tiles::kRow;
  constexpr int kStats = kDouts + Tiles::kQueries * Tiles::kValueRow;

  // The first keys are seen by the most queries: they start first.
  const auto [head, key_tile] = place_of_block(order, static_cast<int>(blockIdx.x));
  const int first = key_tile * Tiles::kKeys;
  const int b = head / w.kv_heads, first_head = head % w.kv_heads * w.group;
  know_pass(w);
  const HeadPlace first_place = place_of(w, b, first_head);
  const T* const rows = static_cast<const T*>(w.qkv) + first_place.row * w.row_stride;
  const T* const dout_rows = static_cast<const T*>(w.dout) + first_place.row * w.out_stride;

  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int warp_row = warp * 16, warp_key = first + warp_row;
  const LaneOffsets<kDim> offsets = lane_offsets<kDim>();
  const LaneOffsets<kValueDim> value_offsets = lane_offsets<kValueDim>();

  const auto copy_queries = [&](int member, int tile, int stage) {
    unsigned char* const to = stages + static_cast<size_t>(stage) * Tiles::kStageBytes;
    T* const elements = reinterpret_cast<T*>(to);
    const int q = tile * Tiles::kQueries;
    const int64_t column = int64_t{first_head + member} * w.head_dim;
    int64_t dout_column = column;
    if constexpr (kNarrow) dout_column = int64_t{first_head + member} * w.value_dim;
    copy_tile<kDim, Tiles::kQueries, Tiles::kThreads>(elements, rows + q * w.row_stride + column,
                                                      w.row_stride, w.seq - q, w.head_dim);
    copy_tile<kValueDim, Tiles::kQueries, Tiles::kThreads>(
        elements + kDouts, dout_rows + q * w.out_stride + dout_column, w.out_stride, w.seq - q,
        value_dim_of<kNarrow>(w));
    const TwoStats* const stats = stats_from(w, first_place.of_all + member, q);
    auto* const stats_to = reinterpret_cast<TwoStats*>(elements + kStats);
    for (int i = static_cast<int>(threadIdx.x); i < Tiles::kQueries / 2; i += Tiles::kThreads) {
      copy_async(stats_to + i, stats + i);
    }
  };
  const int first_tile = first / Tiles::kQueries;
  int queries_end = w.seq;
  if constexpr (kLimited) {
    queries_end = end_of_seeing(w, first_place.row, min(first + Tiles::kKeys, w.seq) - 1);
  }
  const int last_tile = (queries_end + Tiles::kQueries - 1) / Tiles::kQueries;
  copy_tile<kDim, Tiles::kKeys, Tiles::kThreads>(
      keys, rows + first * w.row_stride + key_column(w, first_place), w.row_stride, w.seq - first,
      w.head_dim);
  if constexpr (kHasDk) {
    copy_tile<kValueDim, Tiles::kKeys, Tiles::kThreads>(
        values, rows + first * w.row_stride + value_column<kNarrow>(w, first_place), w.row_stride,
        w.seq - first, value_dim_of<kNarrow>(w));
  }
  copy_queries(0, first_tile, 0);
  copy_async_commit();

  float dk[1][kDim / 8][4], dv[1][kValueDim / 8][4];
  clear(dk);
  clear(dv);
  int member = 0, tile = first_tile;
  for (int stage = 0; member < w.group; stage ^= 1) {
    copy_async_wait<0>();
    __syncthreads();
    const int q = tile * Tiles::kQueries, in_group = member;
    if (++tile == last_tile) {
      tile = first_tile;
      ++member;
    }
    if (member < w.group) {
      copy_queries(member, tile, stage ^ 1);
      copy_async_commit();
    }
    if (q + Tiles::kQueries - 1 < warp_key || warp_key >= w.seq) continue;
    const T* const queries =
        reinterpret_cast<const T*>(stages + static_cast<size_t>(stage) * Tiles::kStageBytes);
    const T* const douts = queries + kDouts;
    const auto* const stats = reinterpret_cast<const TwoStats*>(queries + kStats);
    float scores[1][kN][4], dp[1][kN][4];
    clear(scores);
    multiply_rows<T, kDim>(scores, keys + warp_row * Tiles::kRow + offsets.a, queries + offsets.b);
    clear(dp);
    if constexpr (kHasDk) {
      multiply_rows<T, kValueDim>(dp, values + warp_row * Tiles::kValueRow + value_offsets.a,
                                  douts + value_offsets.b);
    }
    const HeadPlace place = place_of(w, b, first_head + in_group);
    Kept<kN> kept = {};
    if (w.keep_from != 0) {
      const int64_t element = int64_t{q} * w.seq + warp_key;
      kept = kept_of_sums<false, kN>(w, place.first + static_cast<uint64_t>(element));
    }
    PackedSums<1, kN> p, ds;
    cap_scores(w, scores);
    key_weights<kLimited>(w, place, q, warp_key, stats, scores[0]);
    if (w.inner != 0) {
      pack_key_sums<T, true>(w, kept, stats, scores[0], dp[0], p[0], ds[0]);
    } else {
      pack_key_sums<T>(w, kept, stats, scores[0], dp[0], p[0], ds[0]);
    }
    if constexpr (kHasDv) multiply_sums<T, kValueDim>(dv, p, douts + value_offsets.a);
    if constexpr (kHasDk) multiply_sums<T, kDim>(dk, ds, queries + offsets.a);
  }
  if (warp_key >= w.seq) return;
  const float key_factor[1][2] = {{w.scale, w.scale}};
  const float value_factor[1][2] = {{w.keep_scale, w.keep_scale}};
  T* const to = static_cast<T*>(w.dqkv) + (first_place.row + warp_key) * w.row_stride;
  if constexpr (kHasDk) {
    store_rows<T, kDim>(dk, key_factor, keys + warp_row * Tiles::kRow,
                        to + key_column(w, first_place), w.row_stride, w.seq - warp_key,
                        w.head_dim);
  }
  if constexpr (kHasDv) {
    // Of memory that only this warp uses: of the keys, where there are no values.
    T* const room = (kHasDk ? values : keys) + warp_row * Tiles::kValueRow;
    store_rows<T, kValueDim>(dv, value_factor, room, to + value_column<kNarrow>(w, first_place),
                             w.row_stride, w.seq - warp_key, value_dim_of<kNarrow>(w));
  }
}

template <typename T, int kDim, int kValueDim, bool kSmall, bool kLimited>
void launch_tiles(Queue& queue, const AttentionWork& w) {
  using Keys = KeyTiles<kDim, kValueDim, kSmall>;
  using Queries = QueryTiles<kDim, kValueDim, kSmall>;
  static_assert(kMostQueries >= Keys::kQueries && kMostQueries >= Queries::kQueries);
  const BlockOrder keys = order_of_keys(w, Keys::kKeys);
  const auto add_up = [&](auto kernel) {
    launch(kernel, grid_of(keys), dim3(Keys::kThreads), Keys::kSharedBytes, queue.stream(), w,
           keys);
  };
  if constexpr (kDim == 256) {
    add_up(attention_key_tiles<T, kDim, kValueDim, kSmall, kLimited, KeySums::dk>);
    add_up(attention_key_tiles<T, kDim, kValueDim, kSmall, kLimited, KeySums::dv>);
  } else {
    add_up(attention_key_tiles<T, kDim, kValueDim, kSmall, kLimited, KeySums::both>);
  }
  const BlockOrder queries = order_of_queries(w, Queries::kQueries);
  launch(attention_query_tiles<T, kDim, kValueDim, kSmall, kLimited>, grid_of(queries),
         dim3(Queries::kThreads), Queries::kSharedBytes, queue.stream(), w, queries);
}

template <typename T>
void prepare_stats(Queue& queue, const AttentionWork& w, bool packs) {
  with_pack<kPackOf<T>>(packs && w.value_dim % kPackOf<T> == 0, [&](auto pack) {
    constexpr int N = decltype(pack)::value;
    const int64_t stats = int64_t{w.batch} * w.heads * w.stats_stride;
    launch(attention_stats<T, N>, dim3(static_cast<unsigned>(stats / kStatsRows<N>)),
           dim3(kRowWarps * kWarp), 0, queue.stream(), w);
  });
}

template <typename T>
void backward_as(Queue& queue, const AttentionWork& w, bool tiles) {
  if constexpr (!std::is_same_v<T, float>) {
    if (tiles) {
      with_tile_dims(w, [&](auto dim, auto value_dim) {
        constexpr int kDim = decltype(dim)::value, kValueDim = decltype(value_dim)::value;
        constexpr size_t kNeeded = std::max(KeyTiles<kDim, kValueDim, false>::kSharedBytes,
                                            QueryTiles<kDim, kValueDim, false>::kSharedBytes);
        with_tile_limits<kDim>(w, [&](auto limited) {
          constexpr bool kLimited = decltype(limited)::value;
          if (kNeeded <= kLeastShared || kNeeded <= most_shared_bytes()) {
            launch_tiles<T, kDim, kValueDim, false, kLimited>(queue, w);
          } else if constexpr (kNeeded > kLeastShared) {
            static_assert(KeyTiles<kDim, kValueDim, true>::kSharedBytes <= kLeastShared &&
                          QueryTiles<kDim, kValueDim, true>::kSharedBytes <= kLeastShared);
            launch_tiles<T, kDim, kValueDim, true, kLimited>(queue, w);
          }
        });
      });
      return;
    }
  }
  const dim3 rows_block(kRowWarps * kWarp);
  launch(attention_key_rows<T>, grid_of_rows(w, w.kv_heads, 0), rows_block,
         rows_shared_bytes(w, 4, 2), queue.stream(), w);
  launch(attention_query_rows<T>, grid_of_rows(w, w.heads, 0), rows_block,
         rows_shared_bytes(w, 3, 1), queue.stream(), w);
}

}  // namespace

void attention_backward(Queue& queue, const AttentionBackward& args) {
  const AttentionShape& s = args.shape;
  check_attention(args);
  if (s.batch == 0 || s.seq == 0) return;
  AttentionWork w = attention_work(s, args.qkv, args.out, args.lse);
  w.dout = args.dout.data;
  w.dqkv = args.dqkv.data;
  w.first_query = 0;
  w.stats_stride = kernel_scratch::stats_stride(s.seq);
  const bool is_aligned =
      aligned(args.qkv) && aligned(args.out) && aligned(args.dout) && aligned(args.dqkv);
  const bool warpgroups = is_aligned && fits_warpgroups(queue, s, args.qkv.dtype);
  const kernel_scratch::AttentionSize size = size_of(w);
  const bool joint = warpgroups && kernel_scratch::adds_up(queue.hopper_backward(), s.head_dim);
  const int64_t bytes = kernel_scratch::attention_backward(size, joint);
  auto* const memory = static_cast<unsigned char*>(
      args.room && args.room.bytes() >= bytes ? args.room.data : queue.scratch(bytes));
  auto* const stats = memory + kernel_scratch::before_stats(size, joint);
  w.stats = reinterpret_cast<TwoStats*>(stats);
  prepare_slopes(queue, s, w,
                 reinterpret_cast<float*>(stats + kernel_scratch::attention_stats(size)));
  with_type(args.qkv.dtype,
            [&](auto type) { prepare_stats<decltype(type)>(queue, w, is_aligned); });
  if (joint) return joint_backward_by_warpgroups(queue, w, args.qkv.dtype, memory);
  if (warpgroups) return backward_by_warpgroups(queue, w, args.qkv.dtype);
  if (is_aligned && fits_wide_warpgroups(queue, s, args.qkv.dtype)) {
    return wide_backward_by_warpgroups(queue, w, args.qkv.dtype);
  }
  const bool tiles = is_aligned && fits_tiles(s);
  with_type(args.qkv.dtype, [&](auto type) { backward_as<decltype(type)>(queue, w, tiles); });
}

}  // namespace mtl::cuda
