// Attention backward on Hopper in one kernel that waits for nobody, for heads of 64 and 128: five
// products per pair of tiles, and dQ added up by the copy engine.
//
// A block owns 128 keys at a time and goes from the last queries that see them down to its own
// (attention_query_sums.h says why, and why that has the same bits every time). What each of its
// keys gives to a tile's dQ lies in a room of shared memory, from where an adder, one lane of the
// first warpgroup, has the copy engine add it to the sums in global memory when its turn has come.
// So no product waits for a turn, or for the way to the level-2 cache and back. Each room has its
// own adder: with heads of 128 one would be on its way for about as long as a tile takes.
//
// Nor does one consumer wait for the other at every tile: dQ needs dS of both, so it is made one
// tile later, with the products of that tile. Per tile i, a consumer
//
//   issues S and dP of i;  makes P and dS;  writes dS to shared memory, for both
//   issues dQ of i - 1, dV and dK of i;  while dK runs, puts dQ into the room
//
// and dK of i runs on under S and dP of i + 1. With heads of 64, of which two tiles of keys have
// room, the last dQ of one is made beside the first products of the next, and its dK and dV are
// written while S and dP of that run: with 1,024 tokens a tile of keys meets 4.5 of queries.
#include "runtime/device/cuda/attention_key_tiles.h"
#include "runtime/device/cuda/attention_query_sums.h"
#include "runtime/device/cuda/attention_warpgroups.h"
#include "runtime/device/cuda/ops.h"

namespace mtl::cuda {
namespace {

using namespace warpgroups;

using kernel_scratch::kSumsOfTile;
inline constexpr unsigned kRoomBytes = kSumsOfTile * sizeof(float);

// One tile of queries of a tile of keys, in shared memory: neither consumers nor the adder have
// registers for what the producer knows.
struct QueryStep {
  int64_t of_all;  // HeadPlace's
  int sequence;
  int head, q;     // local; the tile's first query
  int before;      // how many add to its dQ earlier; negative: there is no step any more
  bool is_last;    // nobody adds later
  unsigned phase;  // of Barriers::sums, where it waits
  // The last one adds in registers, to what the others have added.
  __device__ bool waits() const { return is_last && before > 0; }
};
inline constexpr int kSteps = 4;  // that are known: the producer is up to three tiles ahead

template <int kDim>
struct JointShape {
  static constexpr int kKeys = kConsumers * kRows;
  static constexpr int kQueries = static_cast<int>(kSumsOfTile) / kDim;
  static constexpr int kKeyStages = kDim == 64 ? 2 : 1, kStages = 2;
  // Whether dK runs on under the next tile's products: of heads of 64 there are too few registers.
  static constexpr bool kRunsOn = kDim == 128;
  // Whether the last dQ of a tile of keys is made beside the next one's products: its keys stay.
  static constexpr bool kCarriesOver = kKeyStages > 1;
  static constexpr int kRooms = kDim == 64 ? 1 : 2;
  static constexpr unsigned kOwnKeys = Panels<kDim>::tile_bytes(kRows);  // of a consumer
  static constexpr unsigned kKeyTile = 2 * kConsumers * kOwnKeys;
  static constexpr unsigned kTile = Panels<kDim>::tile_bytes(kQueries);
  static constexpr unsigned kStatsBytes = sizeof(TwoStats) * kQueries / 2;
  static constexpr unsigned kGradients = kQueries / 64 * kGradientPanel;
  struct Barriers {
    Stages<kKeyStages> keys;
    Stages<kStages> queries;
    Stages<2> gradients;   // dS, written and read by the consumers
    Stages<kRooms> rooms;  // written by the consumers, read by the adders
    Stages<kSteps> steps;  // written by the producer, given back by the adders
    Barrier sums[kRooms];  // of the others, where this block is the last
    Mask mask;             // of the pass
    int numbers[kKeyStages];
    QueryStep step[kSteps];
  };
  // Panels begin at multiples of kAlignment, as the whole does: of heads of 64 nothing is left to
  // find such a place with.
  static constexpr size_t kSharedBytes = kKeyStages * kKeyTile + kStages * 2 * kTile +
                                         2 * kGradients + kRooms * kRoomBytes +
                                         kStages * kStatsBytes + sizeof(Barriers);
};

// A warp's 16 x 64 of a tile's dQ go into its part of the room as its lanes have them; the last
// block finds there what the others have added, and writes dQ.
template <typename T, int kDim>
__device__ inline void put_into_room(const AttentionWork& w, const QueryStep& step,
                                     const Consumer& consumer, unsigned char* room,
                                     const float (&dq)[1][kSumOctets][4]) {
  auto* const own = reinterpret_cast<float4*>(room) +
                    (consumer.index * 4 + consumer.warp) * kSumsOfWarp / 4 + consumer.lane;
  if (!step.is_last) {
    MTL_UNROLL()
    for (int n = 0; n < kSumOctets; ++n) {
      own[n * static_cast<int>(kWarp)] = {dq[0][n][0], dq[0][n][1], dq[0][n][2], dq[0][n][3]};
    }
    return;
  }
  // In registers of their own: those of a product are left alone while others are under way.
  float all[kSumOctets][4];
  MTL_UNROLL()
  for (int n = 0; n < kSumOctets; ++n) {
    float4 sum = {0, 0, 0, 0};
    if (step.before > 0) sum = own[n * static_cast<int>(kWarp)];
    all[n][0] = sum.x + dq[0][n][0];
    all[n][1] = sum.y + dq[0][n][1];
    all[n][2] = sum.z + dq[0][n][2];
    all[n][3] = sum.w + dq[0][n][3];
  }
  const int q = step.q + (kDim == 64 ? consumer.index * kRows : 0) + 16 * consumer.warp;
  if (q >= w.seq) return;
  const int column = kDim == 64 ? 0 : consumer.index * 64;
  const HeadPlace place = place_of(w, step.sequence, step.head);
  T* const to =
      static_cast<T*>(w.dqkv) + (place.row + q) * w.row_stride + query_column(w, place) + column;
  store_octets(all, w.scale, reinterpret_cast<unsigned char*>(own - consumer.lane), to,
               w.row_stride, w.seq - q);
}

// Writes a consumer's 64 rows, 64 columns at a time, by way of a warp's `room`.
template <typename T, int kDim>
__device__ inline void store_key_rows(const AttentionWork& w, const Consumer& consumer,
                                      const float (&c)[1][kDim / 8][4], float factor,
                                      unsigned char* room, T* to, int first) {
  const int row = first + 16 * consumer.warp;
  if (row >= w.seq) return;
  MTL_UNROLL()
  for (int column = 0; column < kDim; column += 64) {
    store_octets(c[0] + column / 8, factor, room, to + row * w.row_stride + column, w.row_stride,
                 w.seq - row);
  }
}

template <typename T, int kDim, bool kLimited, bool kCaps>
__global__ void __launch_bounds__(kThreads, 1)
    attention_backward_joint(AttentionWork w, BlockOrder order, QuerySums query_sums,
                             const MTL_GRID_CONSTANT TensorMap qkv,
                             const MTL_GRID_CONSTANT TensorMap dout) {
  using Shape = JointShape<kDim>;
  constexpr int kN = Shape::kQueries / 8;
  MTL_DYNAMIC_SHARED_PANELS(panels);
  unsigned char* const keys = panels;  // and values behind them
  unsigned char* const queries = keys + Shape::kKeyStages * Shape::kKeyTile;
  unsigned char* const douts = queries + Shape::kStages * Shape::kTile;
  unsigned char* const gradients = douts + Shape::kStages * Shape::kTile;
  unsigned char* const rooms = gradients + 2 * Shape::kGradients;
  auto* const stats = reinterpret_cast<TwoStats*>(rooms + Shape::kRooms * kRoomBytes);
  auto& barriers =
      *reinterpret_cast<typename Shape::Barriers*>(stats + Shape::kStages * Shape::kQueries / 2);

  if (threadIdx.x == 0) {
    fetch_map(qkv);
    fetch_map(dout);
    barriers.keys.init_all();
    barriers.queries.init_all();
    barriers.gradients.init_all(kConsumerWarps, kConsumerWarps);
    barriers.rooms.init_all(kConsumerWarps, 1);
    barriers.steps.init_all(1, 1);
    for (Barrier& sums : barriers.sums) init(sums, 1);
    barriers_made();
    if (w.keep_from != 0) barriers.mask = mask_of(w.dropout);
  }
  __syncthreads();

  const int all_tiles = order.heads * order.tiles;
  if (threadIdx.x < kWarpgroup) {
    give_registers<kProducerRegisters>();
    if (threadIdx.x == 0) {
      int next = 0;                         // tile of queries
      unsigned waited[Shape::kRooms] = {};  // tiles that were the last ones, by room
      const auto tell = [&](int i, const QueryStep& step) {
        barriers.steps.wait_to_write(i);
        barriers.step[i % kSteps] = step;
        arrive(barriers.steps.full[i % kSteps]);
      };
      for (int done = 0;; ++done) {
        // Asked for when all is under way that the tile before needs, and not earlier: others may
        // be waiting for this one soon.
        const int number = static_cast<int>(atomicAdd(query_sums.begun, 1u));
        const int key_stage = done % Shape::kKeyStages;
        Barrier& keys_full = barriers.keys.full[key_stage];
        barriers.keys.wait_to_write(done);
        barriers.numbers[key_stage] = number;
        if (number >= all_tiles) {
          arrive(keys_full);
          for (int i = 0; i < Shape::kRooms; ++i) tell(next + i, {0, 0, 0, 0, -1, false, 0});
          break;
        }
        const KeyTile<Shape> tile = key_tile_of<Shape, kLimited>(w, order, number);
        bring_key_tile<kDim>(w, tile, qkv,
                             keys + static_cast<unsigned>(key_stage) * Shape::kKeyTile,
                             Shape::kOwnKeys, keys_full);
        int member = 0, query_tile = tile.last_tile;
        for (const int end = next + tile.count; next < end; ++next) {
          const int stage = next % Shape::kStages, q = query_tile * Shape::kQueries;
          const auto [before, is_last] =
              adding_order<Shape, kLimited>(w, order, tile.place.row, tile.index, q);
          unsigned& before_in_room = waited[next % Shape::kRooms];
          const QueryStep step = {tile.place.of_all + member,
                                  tile.sequence,
                                  tile.place.head + member,
                                  q,
                                  before,
                                  is_last,
                                  before_in_room % 2};
          if (step.waits()) ++before_in_room;
          tell(next, step);
          Barrier& full = barriers.queries.begin(next, 2 * Shape::kTile + Shape::kStatsBytes);
          bring_query_tile<kDim>(w, tile, member, q, qkv, dout, queries + stage * Shape::kTile,
                                 douts + stage * Shape::kTile, stats + stage * Shape::kQueries / 2,
                                 full);
          if (++member == w.group) {
            member = 0;
            --query_tile;
          }
        }
      }
    } else if (threadIdx.x % kWarp == 0 && threadIdx.x <= Shape::kRooms * kWarp) {
      for (auto next = static_cast<int>(threadIdx.x / kWarp) - 1;; next += Shape::kRooms) {
        barriers.steps.wait_for(next);
        const QueryStep step = barriers.step[next % kSteps];
        if (step.before < 0) break;
        unsigned char* const room = rooms + next % Shape::kRooms * kRoomBytes;
        const int64_t number = step.of_all * query_sums.tiles + step.q / Shape::kQueries;
        float* const sums = query_sums.sums + number * kSumsOfTile;
        unsigned* const turn = query_sums.turns + number;
        if (step.before > 0) {
          lane_waits_for_turn(turn, step.before);
          known_to_copies();
        }
        if (step.waits()) {
          arrive_expecting(barriers.sums[next % Shape::kRooms], kRoomBytes);
          copy_bytes(room, sums, kRoomBytes, barriers.sums[next % Shape::kRooms]);
        }
        barriers.rooms.wait_for(next);
        arrive(barriers.steps.empty[next % kSteps]);
        if (step.is_last) {
          arrive(barriers.rooms.empty[next % Shape::kRooms]);
          continue;
        }
        if (step.before > 0) {
          add_floats(sums, room, kRoomBytes);
        } else {
          write_bytes(sums, room, kRoomBytes);
        }
        writes_issued();
        writes_have_read();
        arrive(barriers.rooms.empty[next % Shape::kRooms]);
        writes_done();
        lane_passes_on_turn(turn);
      }
    }
  } else {
    take_registers<kConsumerRegisters>();
    const Consumer consumer = consumer_of_thread();
    float dk[1][kDim / 8][4], dv[1][kDim / 8][4], dq[1][kSumOctets][4];
    const auto stage_of_keys = [&](int i) {
      return keys + static_cast<unsigned>(i % Shape::kKeyStages) * Shape::kKeyTile;
    };
    // dQ of tile i, once both consumers have written its dS.
    const auto issue_dq = [&](int i, uint32_t keys_at) {
      barriers.gradients.wait_for(i);
      multiply_gradients<T, kDim>(
          dq[0], shared_address(gradients) + static_cast<unsigned>(i % 2) * Shape::kGradients,
          keys_at, Shape::kOwnKeys, consumer.index);
    };
    const auto hand_over_dq = [&](int i) {
      barriers.gradients.done_with(i);
      unsigned char* const room = rooms + i % Shape::kRooms * kRoomBytes;
      const QueryStep& step = barriers.step[i % kSteps];
      barriers.rooms.wait_to_write(i);
      if (step.waits()) wait(barriers.sums[i % Shape::kRooms], step.phase);
      put_into_room<T, kDim>(w, step, consumer, room, dq);
      barriers.rooms.written(i);
    };
    // dK and dV of the tile of keys `own`, by way of a warp's `room`.
    const auto store_keys = [&](const KeyTile<Shape>& own, unsigned char* room) {
      const int own_key = own.first + consumer.index * kRows;
      T* const to = static_cast<T*>(w.dqkv) + own.place.row * w.row_stride;
      store_key_rows<T, kDim>(w, consumer, dk, w.scale, room, to + key_column(w, own.place),
                              own_key);
      store_key_rows<T, kDim>(w, consumer, dv, w.keep_scale, room, to + value_column(w, own.place),
                              own_key);
    };
    // The same of the i-th, whose keys are still needed. Its own values a consumer alone multiplies
    // by: there is room. The copy engine writes there behind the next dS and its fence.
    const auto store_carried = [&](int i) {
      // All of its warps have: of a product nobody says which of them reads what.
      sync_some(kOwnThreads + consumer.index, static_cast<int>(kWarpgroup));
      const int number = of_warp(barriers.numbers[i % Shape::kKeyStages]);
      store_keys(key_tile_of<Shape, kLimited>(w, order, number),
                 stage_of_keys(i) +
                     static_cast<unsigned>(kConsumers + consumer.index) * Shape::kOwnKeys +
                     consumer.warp * (Shape::kOwnKeys / 4));
    };
    int next = 0;  // tile of queries
    int done = 0;  // tiles of keys
    for (;; ++done) {
      const int key_stage = done % Shape::kKeyStages;
      barriers.keys.wait_for(done);
      const int number = of_warp(barriers.numbers[key_stage]);
      if (number >= all_tiles) break;
      const KeyTile<Shape> own = key_tile_of<Shape, kLimited>(w, order, number);
      const int warp_key = own.first + consumer.index * kRows + 16 * consumer.warp;
      const uint32_t keys_at = shared_address(stage_of_keys(done));
      const uint32_t own_keys = keys_at + static_cast<unsigned>(consumer.index) * Shape::kOwnKeys;
      const uint32_t own_values = own_keys + kConsumers * Shape::kOwnKeys;

      uint32_t p[kN][2], ds[kN][2];
      // The first tile, which no dQ is left to be made before.
      const int first = Shape::kCarriesOver ? 0 : next;
      for (const int begin = next, end = next + own.count; next < end; ++next) {
        const int stage = next % Shape::kStages;
        const uint32_t queries_at = shared_address(queries + stage * Shape::kTile);
        const uint32_t douts_at = shared_address(douts + stage * Shape::kTile);
        const TwoStats* const stats_at = stats + stage * Shape::kQueries / 2;
        const bool carries = Shape::kCarriesOver && next == begin && done > 0;
        float s[kN][4], dp[kN][4];
        barriers.queries.wait_for(next);
        const QueryStep& step = barriers.step[next % kSteps];
        const HeadPlace place = place_of(w, own.sequence, of_warp(step.head));
        const int q = of_warp(step.q);
        multiply_rows<T, kDim>(s, own_keys, queries_at);
        multiply_rows<T, kDim>(dp, own_values, douts_at);
        if constexpr (Shape::kCarriesOver) {
          if (carries) {
            // Nothing else is under way, which ptxas does not know over the end of the loop: before
            // it lets dK be read, it would wait for these two as well.
            products_wait<2>();
            store_carried(done - 1);
          }
        }
        products_wait<1>();  // the scores, and dK of the tile before
        hold(s);
        if constexpr (Shape::kRunsOn) {
          hold(dk[0]);
          if (next > first) barriers.queries.done_with(next - 1);
        }
        Kept<kN> kept = {};
        if (w.keep_from != 0) {
          const int64_t element = int64_t{q} * w.seq + warp_key;
          w.key = barriers.mask.key;
          kept = kept_of_sums<false, kN>(
              w, barriers.mask.first + place.first + static_cast<uint64_t>(element));
        }
        if constexpr (kCaps) cap_scores(w, s);
        key_weights<kLimited>(w, place, q, warp_key, stats_at, s);
        products_wait<0>();
        hold(dp);
        pack_key_sums<T, kCaps>(w, kept, stats_at, s, dp, p, ds);
        barriers.gradients.wait_to_write(next);
        write_gradients(gradients + static_cast<unsigned>(next % 2) * Shape::kGradients, consumer,
                        ds);
        barriers.gradients.written(next);
        // Also of the first tile, which has none before it: with a condition around products, or a
        // first tile by itself, ptxas waits for every single product (C7515, C7512).
        issue_dq(max(next - 1, first), carries ? shared_address(stage_of_keys(done - 1)) : keys_at);
        multiply_sums<T, kDim>(dv[0], p, douts_at, next > begin);
        multiply_sums<T, kDim>(dk[0], ds, queries_at, next > begin);
        products_wait<1>();
        hold(dv[0]);
        hold(dq[0]);
        if (next > first) hand_over_dq(next - 1);
        if (carries) barriers.keys.done_with(done - 1);
        if constexpr (!Shape::kRunsOn) {
          products_wait<0>();
          hold(dk[0]);
          barriers.queries.done_with(next);
        }
      }
      if constexpr (!Shape::kCarriesOver) {
        issue_dq(next - 1, keys_at);
        products_wait<0>();
        hold(dk[0]);
        hold(dq[0]);
        if constexpr (Shape::kRunsOn) barriers.queries.done_with(next - 1);
        hand_over_dq(next - 1);
        // Both have multiplied all keys: there is room for results.
        sync_some(kAllConsumers, kConsumerThreads);
        store_keys(own, stage_of_keys(done) + (consumer.index * 4 + consumer.warp) *
                                                  (Shape::kKeyTile / kConsumerWarps));
        written_for_products();  // as dS: the copy engine is to write there next
        barriers.keys.done_with(done);
      }
    }
    if constexpr (Shape::kCarriesOver) {
      if (done > 0) {  // others may have been faster
        issue_dq(next - 1, shared_address(stage_of_keys(done - 1)));
        store_carried(done - 1);
        products_wait<0>();
        hold(dq[0]);
        hand_over_dq(next - 1);
      }
    }
  }
}

template <typename T, int kDim, bool kLimited, bool kCaps>
void launch_joint(Queue& queue, const AttentionWork& w, void* memory) {
  using Shape = JointShape<kDim>;
  static_assert(kMostQueries >= Shape::kQueries);
  static_assert(Shape::kSharedBytes <= size_t{227} << 10);    // of a Hopper's block
  static_assert(Shape::kOwnKeys / 4 >= 16 * 64 * sizeof(T));  // rooms of warps
  const kernel_scratch::AttentionSize size = size_of(w);
  const int64_t of_head = kernel_scratch::query_tiles(size);
  const int64_t tiles = size.batch * size.heads * of_head;
  auto* const turns = static_cast<unsigned*>(memory) + tiles * kSumsOfTile;
  const QuerySums sums = {static_cast<float*>(memory), turns, turns + tiles,
                          static_cast<int>(of_head)};
  fill(queue, Tensor(turns, DType::f32, {tiles + 1}), 0);
  const BlockOrder keys = order_of_joint_keys(queue, w, Shape::kKeys);
  const dim3 grid(std::min(grid_of(keys).x, static_cast<unsigned>(queue.multiprocessors())));
  launch_together(attention_backward_joint<T, kDim, kLimited, kCaps>, grid, dim3(kThreads),
                  Shape::kSharedBytes, queue.stream(), w, keys, sums, map_of_qkv<T, kDim>(w),
                  map_of_dout<T, kDim>(w));
}

}  // namespace

void joint_backward_by_warpgroups(Queue& queue, const AttentionWork& w, DType dtype,
                                  void* scratch) {
  with_form(w, dtype, [&](auto type, auto dim, auto limited, auto caps) {
    using T = decltype(type);
    constexpr int kDim = decltype(dim)::value;
    if constexpr (kDim != 96) {
      launch_joint<T, kDim, decltype(limited)::value, decltype(caps)::value>(queue, w, scratch);
    }
  });
}

}  // namespace mtl::cuda
