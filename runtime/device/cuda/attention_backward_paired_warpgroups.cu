// dK and dV on Hopper (attention_panels.h) of heads of 256, whose registers one consumer has not.
// Each of the two makes one of them, of the same 64 keys:
//
//   the first:  S^T = K Q^T, P; dV += P^T dO
//   the second: dP^T = V dO^T; dS = P (dP - delta), dK += dS^T Q
//
// P goes from the one to the other by way of shared memory, in f32: so each has two products, and
// none is made twice. There are two rooms for P: the first consumer may be a tile ahead.
#include "runtime/device/cuda/attention_wide_backward.h"

namespace mtl::cuda {
namespace {

namespace paired_keys {

using namespace wide_backward;

// Transposed, so that the sums of keys x queries are operands A. From the last tile of queries to
// the first, of each the heads of the group in order.
template <int kDim, int kValueDim>
struct KeyShape {
  static constexpr int kKeys = kRows, kQueries = 64, kStages = 2, kRooms = 2;
  static constexpr int kN = kQueries / 8;
  static constexpr unsigned kKeyTile = Panels<kDim>::tile_bytes(kKeys);
  static constexpr unsigned kValueTile = Panels<kValueDim>::tile_bytes(kKeys);
  // Of a stage, dO behind Q.
  static constexpr unsigned kQueryTile = Panels<kDim>::tile_bytes(kQueries);
  static constexpr unsigned kDoutTile = Panels<kValueDim>::tile_bytes(kQueries);
  static constexpr unsigned kStage = kQueryTile + kDoutTile;
  static constexpr unsigned kStatsBytes = sizeof(TwoStats) * kQueries / 2;
  static constexpr unsigned kRoom = sizeof(float) * kKeys * kQueries;  // of P
  struct Barriers {
    Barrier keys, values;
    Stages<kStages> queries, douts;  // with Q come the statistics
    Stages<kRooms> weights;          // written by the first consumer, read by the second
    Mask mask;                       // of the pass: there are no registers to keep it in
  };
  static constexpr size_t kSharedBytes = kKeyTile + kValueTile + kStages * (kStage + kStatsBytes) +
                                         kRooms * kRoom + sizeof(Barriers) + kAlignment;
};

// Where a block of this kernel has what.
template <class Shape>
struct KeyRooms {
  unsigned char *keys, *values, *stages, *weights;
  TwoStats* stats;
  typename Shape::Barriers* barriers;

  __device__ explicit KeyRooms(unsigned char* shared)
      : keys(aligned_shared(shared)),
        values(keys + Shape::kKeyTile),
        stages(values + Shape::kValueTile),
        weights(stages + Shape::kStages * Shape::kStage),
        stats(reinterpret_cast<TwoStats*>(weights + Shape::kRooms * Shape::kRoom)),
        barriers(reinterpret_cast<typename Shape::Barriers*>(stats + Shape::kStages *
                                                                         Shape::kQueries / 2)) {}
  __device__ unsigned char* queries_of(int i) const {
    return stages + i % Shape::kStages * Shape::kStage;
  }
  __device__ unsigned char* douts_of(int i) const { return queries_of(i) + Shape::kQueryTile; }
  __device__ TwoStats* stats_of(int i) const {
    return stats + i % Shape::kStages * Shape::kQueries / 2;
  }
  // P as its lanes have it: octet n of thread t of a consumer is number n * kWarpgroup + t.
  __device__ float4* weights_of(int i, const Consumer& consumer) const {
    return reinterpret_cast<float4*>(weights + i % Shape::kRooms * Shape::kRoom) +
           consumer.warp * static_cast<int>(kWarp) + consumer.lane;
  }
};

template <int kDim, int kValueDim, class Shape>
__device__ inline void bring_queries(const AttentionWork& w, const KeyTile<Shape>& own,
                                     const KeyRooms<Shape>& rooms, const TensorMap& qk,
                                     const TensorMap& v, const TensorMap& dout) {
  auto& barriers = *rooms.barriers;
  arrive_expecting(barriers.keys, Shape::kKeyTile);
  copy_rows<kDim, kRows>(rooms.keys, qk, barriers.keys, w.heads + own.place.kv, own.first,
                         own.sequence);
  arrive_expecting(barriers.values, Shape::kValueTile);
  copy_rows<kValueDim, kRows>(rooms.values, v, barriers.values, own.place.kv, own.first,
                              own.sequence);
  QueryStep at = {0, own.last_tile};
  for (int i = 0; i < own.count; ++i) {
    const int head = own.place.head + at.member, q = at.tile * Shape::kQueries;
    Barrier& queries = barriers.queries.begin(i, Shape::kQueryTile + Shape::kStatsBytes);
    copy_rows<kDim, Shape::kQueries>(rooms.queries_of(i), qk, queries, head, q, own.sequence);
    copy_bytes(rooms.stats_of(i), stats_from(w, own.place.of_all + at.member, q),
               Shape::kStatsBytes, queries);
    copy_rows<kValueDim, Shape::kQueries>(
        rooms.douts_of(i), dout, barriers.douts.begin(i, Shape::kDoutTile), head, q, own.sequence);
    at.advance(w.group);
  }
}

// P of the first consumer for the second, negative where dropout drops it, and for dV.
template <typename T, int kN>
__device__ inline void hand_over(const AttentionWork& w, const Kept<kN>& kept, float (&s)[kN][4],
                                 float4* to, uint32_t (&p)[kN][2]) {
  const auto put = [&](auto drops) {
    MTL_UNROLL()
    for (int n = 0; n < kN; ++n) {
      float told[4];
      MTL_UNROLL()
      for (int i = 0; i < 4; ++i) {
        told[i] = s[n][i];
        if constexpr (decltype(drops)::value) {
          if (!kept.at(n, i)) {
            told[i] = -s[n][i];
            s[n][i] = 0;
          }
        }
      }
      to[n * static_cast<int>(kWarpgroup)] = {told[0], told[1], told[2], told[3]};
      p[n][0] = pack_two<T>(s[n][0], s[n][1]);
      p[n][1] = pack_two<T>(s[n][2], s[n][3]);
    }
  };
  if (w.keep_from != 0) {
    put(std::true_type{});
  } else {
    put(std::false_type{});
  }
}

// dS = P (dP - delta), times the derivative of a cap, as operand A, of keys x queries.
template <typename T, bool kCaps, int kN>
__device__ inline void pack_gradients(const AttentionWork& w, const TwoStats* stats,
                                      const float4* weights, const float (&dp)[kN][4],
                                      uint32_t (&ds)[kN][2]) {
  const auto pack = [&](auto drops) {
    MTL_UNROLL()
    for (int n = 0; n < kN; ++n) {
      const Pack<float, 2> delta = stats_of_columns(stats, n).delta;
      const float4 four = weights[n * static_cast<int>(kWarpgroup)];
      const float told[4] = {four.x, four.y, four.z, four.w};
      float x[4];
      MTL_UNROLL()
      for (int i = 0; i < 4; ++i) {
        float weight = told[i], gradient = dp[n][i];
        if constexpr (decltype(drops)::value) {
          gradient = weight < 0 ? 0.0f : gradient * w.keep_scale;
          weight = fabsf(weight);
        }
        x[i] = weight * (gradient - delta.at[i % 2]);
        if constexpr (kCaps) {
          x[i] *= slope_of_cap(w, weight, stats_of_columns(stats, n).lse2.at[i % 2]);
        }
      }
      ds[n][0] = pack_two<T>(x[0], x[1]);
      ds[n][1] = pack_two<T>(x[2], x[3]);
    }
  };
  if (w.keep_from != 0) {
    pack(std::true_type{});
  } else {
    pack(std::false_type{});
  }
}

// The first consumer's part.
template <typename T, int kDim, int kValueDim, bool kCaps, class Shape>
__device__ inline void make_dv(AttentionWork& w, const KeyTile<Shape>& own,
                               const KeyRooms<Shape>& rooms, const Consumer& consumer) {
  constexpr int kN = Shape::kN;
  auto& barriers = *rooms.barriers;
  const int warp_key = own.first + 16 * consumer.warp;
  float dv[kValueDim / 8][4];
  clear_sums(dv);
  uint32_t p[kN][2];
  QueryStep at = {0, own.last_tile};
  wait(barriers.keys, 0);
  for (int i = 0; i < own.count; ++i) {
    const int q = at.tile * Shape::kQueries;
    const HeadPlace place = place_of(w, own.sequence, own.place.head + at.member);
    at.advance(w.group);
    float s[kN][4];
    barriers.queries.wait_for(i);
    multiply_rows<T, kDim>(s, shared_address(rooms.keys), shared_address(rooms.queries_of(i)));
    products_wait<0>();  // the scores, and dV of the tile before
    hold(s);
    hold(dv);
    if (i > 0) barriers.douts.done_with(i - 1);
    Kept<kN> kept = {};
    if (w.keep_from != 0) {
      const int64_t element = int64_t{q} * w.seq + warp_key;
      w.key = barriers.mask.key;
      kept = kept_of_sums<false, kN>(
          w, barriers.mask.first + place.first + static_cast<uint64_t>(element));
    }
    if constexpr (kCaps) cap_scores(w, s);
    key_weights<true>(w, place, q, warp_key, rooms.stats_of(i), s);
    read_before_copies();  // the copy engine is to write where statistics were read
    barriers.queries.done_with(i);
    barriers.weights.wait_to_write(i);
    hand_over<T>(w, kept, s, rooms.weights_of(i, consumer), p);
    __syncwarp();
    if (consumer.lane == 0) arrive(barriers.weights.full[i % Shape::kRooms]);
    barriers.douts.wait_for(i);
    multiply_sums<T, kValueDim>(dv, p, shared_address(rooms.douts_of(i)));
  }
  products_wait<0>();
  hold(dv);
  sync_some(kOwnThreads + consumer.index, static_cast<int>(kWarpgroup));
  store_panels<T, kValueDim>(
      w, consumer, dv, w.keep_scale, rooms.keys,
      static_cast<T*>(w.dqkv) + own.place.row * w.row_stride + value_column<true>(w, own.place),
      w.row_stride, own.first);
}

// The second one's.
template <typename T, int kDim, int kValueDim, bool kCaps, class Shape>
__device__ inline void make_dk(const AttentionWork& w, const KeyTile<Shape>& own,
                               const KeyRooms<Shape>& rooms, const Consumer& consumer) {
  constexpr int kN = Shape::kN;
  auto& barriers = *rooms.barriers;
  float dk[kDim / 8][4];
  clear_sums(dk);
  uint32_t ds[kN][2];
  wait(barriers.values, 0);
  for (int i = 0; i < own.count; ++i) {
    float dp[kN][4];
    barriers.douts.wait_for(i);
    multiply_rows<T, kValueDim>(dp, shared_address(rooms.values),
                                shared_address(rooms.douts_of(i)));
    products_wait<0>();  // dP, and dK of the tile before
    hold(dp);
    hold(dk);
    if (i > 0) barriers.queries.done_with(i - 1);
    barriers.douts.done_with(i);
    barriers.queries.wait_for(i);
    barriers.weights.wait_for(i);
    pack_gradients<T, kCaps>(w, rooms.stats_of(i), rooms.weights_of(i, consumer), dp, ds);
    read_before_copies();  // of the statistics, which done_with follows a tile later
    barriers.weights.done_with(i);
    multiply_sums<T, kDim>(dk, ds, shared_address(rooms.queries_of(i)));
  }
  products_wait<0>();
  hold(dk);
  sync_some(kOwnThreads + consumer.index, static_cast<int>(kWarpgroup));
  store_panels<T, kDim>(
      w, consumer, dk, w.scale, rooms.values,
      static_cast<T*>(w.dqkv) + own.place.row * w.row_stride + key_column(w, own.place),
      w.row_stride, own.first);
}

template <typename T, int kDim, int kValueDim, bool kCaps>
__global__ void __launch_bounds__(kThreads, 1)
    attention_paired_key_warpgroups(AttentionWork w, BlockOrder order,
                                    const MTL_GRID_CONSTANT TensorMap qk,
                                    const MTL_GRID_CONSTANT TensorMap v,
                                    const MTL_GRID_CONSTANT TensorMap dout) {
  using Shape = KeyShape<kDim, kValueDim>;
  constexpr unsigned kWarps = kWarpgroup / kWarp;
  MTL_DYNAMIC_SHARED(shared);
  const KeyRooms<Shape> rooms(shared);
  auto& barriers = *rooms.barriers;

  if (threadIdx.x == 0) {
    fetch_map(qk);
    fetch_map(v);
    fetch_map(dout);
    init(barriers.keys, 1);
    init(barriers.values, 1);
    barriers.queries.init_all();
    barriers.douts.init_all();
    barriers.weights.init_all(kWarps, kWarps);
    barriers_made();
    if (w.keep_from != 0) barriers.mask = mask_of(w.dropout);
  }
  __syncthreads();

  const KeyTile<Shape> own = key_tile_of<Shape, true>(w, order, static_cast<int>(blockIdx.x));
  if (threadIdx.x < kWarpgroup) {
    give_registers<kProducerRegisters>();
    if (threadIdx.x == 0) bring_queries<kDim, kValueDim>(w, own, rooms, qk, v, dout);
  } else {
    take_registers<kConsumerRegisters>();
    const Consumer consumer = consumer_of_thread();
    if (consumer.index == 0) {
      make_dv<T, kDim, kValueDim, kCaps>(w, own, rooms, consumer);
    } else {
      make_dk<T, kDim, kValueDim, kCaps>(w, own, rooms, consumer);
    }
  }
}

template <typename T, int kDim, int kValueDim, bool kCaps>
void launch_paired(Queue& queue, const AttentionWork& w) {
  using Shape = KeyShape<kDim, kValueDim>;
  static_assert(kMostQueries >= Shape::kQueries);
  const WideMaps maps = wide_maps<T>(w, kBoxRows);
  const BlockOrder order = order_of_keys(w, Shape::kKeys);
  launch(attention_paired_key_warpgroups<T, kDim, kValueDim, kCaps>, grid_of(order), dim3(kThreads),
         Shape::kSharedBytes, queue.stream(), w, order, maps.qk, maps.v, maps.dout);
}

}  // namespace paired_keys

}  // namespace

void paired_keys_by_warpgroups(Queue& queue, const AttentionWork& w, DType dtype) {
  const auto launch_for = [&](auto type) {
    using T = decltype(type);
    if (w.inner != 0) {
      paired_keys::launch_paired<T, 256, 256, true>(queue, w);
    } else {
      paired_keys::launch_paired<T, 256, 256, false>(queue, w);
    }
  };
  if (dtype == DType::bf16) {
    launch_for(Bf16{});
  } else {
    launch_for(Half{});
  }
}

}  // namespace mtl::cuda
