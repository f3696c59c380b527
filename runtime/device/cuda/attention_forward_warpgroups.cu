// Attention forward on Hopper (attention_panels.h).
#include "runtime/device/cuda/attention_panels.h"
#include "runtime/device/cuda/attention_warpgroups.h"
#include "runtime/device/cuda/ops.h"

namespace mtl::cuda {
namespace {

using namespace warpgroups;

// Heads beyond 128 leave no room for two tiles of queries: there the one makes way for the next as
// soon as its last scores are made, so results leave by a room of their own. Heads of 256, whose
// results take 128 registers of a thread, leave none for scores of 128 keys either.
template <int kDim, int kValueDim>
struct ForwardShape {
  static constexpr bool kWide = kDim > 128;
  static constexpr int kQueries = kConsumers * kRows, kKeys = kDim > 192 ? 64 : 128;
  static constexpr int kStages = 2, kQueryStages = kWide ? 1 : 2;
  static constexpr unsigned kTile = Panels<kDim>::tile_bytes(kKeys);
  static constexpr unsigned kValueTile = Panels<kValueDim>::tile_bytes(kKeys);
  static constexpr unsigned kOwnBytes =
      kWide ? Panels<kDim>::tile_bytes(kRows) : Panels<kDim>::kOwnBytes;
  static constexpr unsigned kQueryTile = kConsumers * kOwnBytes;
  static constexpr unsigned kRooms = kWide ? kConsumers * 8192 : 0;  // store_panels
  struct Barriers {
    Stages<kQueryStages> queries;
    Stages<kStages> keys, values;
    int numbers[kQueryStages];  // of the tiles of queries, from the producer
  };
  static constexpr size_t kSharedBytes = kQueryStages * kQueryTile +
                                         kStages * (kTile + kValueTile) + kRooms +
                                         sizeof(Barriers) + kAlignment;
  static_assert(kSharedBytes <= 227 << 10);
  // Of keys as many as the queries of one consumer two tiles lie on the diagonal, and the first
  // consumer sees nothing of the newer one.
  static constexpr bool kSkips = kKeys == kRows;
  static_assert(kSkips || kKeys == kQueries);
  // Who has the first turn, past the tile that each begins with: who has less of that one, or more
  // tiles.
  static constexpr int kLeader = kSkips ? 1 : 0;
};

// A tile of queries, and the keys that it sees.
struct ForwardTile {
  int sequence, first;  // query
  HeadPlace place;
  KeyTiles seen;
};
template <class Shape, bool kLimited>
__device__ inline ForwardTile forward_tile(const AttentionWork& w, const BlockOrder& order,
                                           int number) {
  // The last queries see the most keys: they start first.
  const auto [head, from_last] = place_of_block(order, number);
  const int first = ((w.seq - 1) / Shape::kQueries - from_last) * Shape::kQueries;
  const int sequence = head / w.heads;
  const HeadPlace place = place_of(w, sequence, head % w.heads);
  return {sequence, first, place, seen_by_queries<Shape, kLimited>(w, place, first)};
}

// As many blocks as there are multiprocessors, each with tile after tile: while the last one's
// results are written, the copies of the next one are under way. Of 1,024 tokens a tile sees five
// tiles of keys; starting a block and waiting for its first copies takes half as long. A block's
// first tile is that of its index, then the next that nobody has taken, which `taken` counts.
template <typename T, int kDim, int kValueDim, bool kLimited, bool kCaps>
__global__ void __launch_bounds__(kThreads, 1)
    attention_forward_warpgroups(AttentionWork w, BlockOrder order, unsigned* taken,
                                 const MTL_GRID_CONSTANT TensorMap of_keys,
                                 const MTL_GRID_CONSTANT TensorMap of_values) {
  using Shape = ForwardShape<kDim, kValueDim>;
  using Tile = Panels<kDim>;
  constexpr int kN = Shape::kKeys / 8;
  MTL_DYNAMIC_SHARED(shared);
  unsigned char* const queries = aligned_shared(shared);
  unsigned char* const keys = queries + Shape::kQueryStages * Shape::kQueryTile;
  unsigned char* const values = keys + Shape::kStages * Shape::kTile;
  unsigned char* const rooms = values + Shape::kStages * Shape::kValueTile;
  auto& barriers = *reinterpret_cast<typename Shape::Barriers*>(rooms + Shape::kRooms);
  const int all_tiles = order.heads * order.tiles;
  know_pass(w);

  if (threadIdx.x == 0) {
    fetch_map(of_keys);
    fetch_map(of_values);
    barriers.queries.init_all();
    barriers.keys.init_all();
    barriers.values.init_all();
    barriers_made();
  }
  __syncthreads();

  if (threadIdx.x < kWarpgroup) {
    give_registers<kProducerRegisters>();
    if (threadIdx.x == 0) {
      int done = 0, before = 0;  // tiles of queries, and of keys
      int number = static_cast<int>(blockIdx.x);
      while (number < all_tiles) {
        const int next = static_cast<int>(gridDim.x + atomicAdd(taken, 1u));
        const ForwardTile tile = forward_tile<Shape, kLimited>(w, order, number);
        barriers.queries.wait_to_write(done);
        barriers.numbers[done % Shape::kQueryStages] = number;
        Barrier& full = barriers.queries.full[done % Shape::kQueryStages];
        arrive_expecting(full, kConsumers * Tile::tile_bytes(kRows));
        unsigned char* const to = queries + done % Shape::kQueryStages * Shape::kQueryTile;
        for (int i = 0; i < kConsumers; ++i) {
          copy_rows<kDim, kRows>(to + i * Shape::kOwnBytes, of_keys, full, tile.place.head,
                                 tile.first + i * kRows, tile.sequence);
        }
        for (int i = 0; i < tile.seen.count; ++i, ++before) {
          const int stage = before % Shape::kStages, k = tile.seen.at(i) * Shape::kKeys;
          copy_rows<kDim, Shape::kKeys>(keys + stage * Shape::kTile, of_keys,
                                        barriers.keys.begin(before, Shape::kTile),
                                        w.heads + tile.place.kv, k, tile.sequence);
          copy_rows<kValueDim, Shape::kKeys>(values + stage * Shape::kValueTile, of_values,
                                             barriers.values.begin(before, Shape::kValueTile),
                                             tile.place.kv, k, tile.sequence);
        }
        ++done;
        number = next;
      }
      barriers.queries.wait_to_write(done);
      barriers.numbers[done % Shape::kQueryStages] = number;  // one that is not there
      arrive(barriers.queries.full[done % Shape::kQueryStages]);
    }
  } else {
    take_registers<kConsumerRegisters>();
    const Consumer consumer = consumer_of_thread();
    int before_all = 0;
    for (int done = 0;; ++done) {
      barriers.queries.wait_for(done);
      const int number = of_warp(barriers.numbers[done % Shape::kQueryStages]);
      if (number >= all_tiles) break;
      const auto [sequence, first, place, seen] = forward_tile<Shape, kLimited>(w, order, number);
      unsigned char* const own = queries + done % Shape::kQueryStages * Shape::kQueryTile +
                                 consumer.index * Shape::kOwnBytes;
      const int own_query = first + consumer.index * kRows;
      const int warp_query = own_query + 16 * consumer.warp;
      const int q = warp_query + consumer.lane / 4;  // of this lane's first sums
      const float slope = w.slopes != nullptr ? w.slopes[place.head] : 0.0f;
      const int end = before_all + seen.count;
      const bool leads = consumer.index == Shape::kLeader;
      const int skipped =
          Shape::kSkips && (seen.first + seen.count) * Shape::kKeys > first + kRows ? 1 : 0;
      const int begin = before_all + (consumer.index == 0 ? skipped : 0);
      // Whether the other one waits for this one's products of tile i to be issued.
      const auto is_waited_for = [&](int i) {
        return leads ? i + skipped < end : i + 1 < end + skipped;
      };
      const auto keys_at = [&](int i) {
        return shared_address(keys + i % Shape::kStages * Shape::kTile);
      };
      const auto values_at = [&](int i) {
        return shared_address(values + i % Shape::kStages * Shape::kValueTile);
      };
      const auto first_key = [&](int i) { return seen.at(i - before_all) * Shape::kKeys; };

      float o[1][kValueDim / 8][4];
      clear(o);
      RunningSoftmax<1> softmax;
      softmax.clear();
      PackedSums<1, kN> p;
      // Scores of tile i become weights; returns whether o is to be scaled by `before`.
      const auto weigh = [&](int i, auto& s, float(&before)[1][2], bool diagonal) {
        const int own_key = first_key(i) + consumer.lane % 4 * 2;
        if constexpr (kCaps) cap_scores(w, s);
        const float factor = finish_scores(w, slope, s, own_key - q, diagonal);
        if constexpr (kLimited) hide_keys(w, place.row, s, q, own_key, factor);
        return softmax.add(s, factor, before);
      };
      const auto pack = [&](int i, auto& s, auto& to) {
        const int64_t element = int64_t{warp_query} * w.seq + first_key(i);
        pack_weights<T>(w, place.first + static_cast<uint64_t>(element), s, to);
      };

      const auto done_with_keys = [&](int i) {
        barriers.keys.done_with(i);
        if (Shape::kWide && i + 1 == end) barriers.queries.done_with(done);
      };

      // The tile on the diagonal. Where it is as long as that of queries, the first consumer's see
      // half of it: its exponentials, which take longest, are half as many; the products with its
      // zeros are few.
      const auto begin_with = [&](auto octets) {
        constexpr int kOctets = decltype(octets)::value;
        float s[1][kOctets][4], before[1][2];
        multiply_rows<T, kDim, Shape::kKeys>(s[0], shared_address(own), keys_at(begin));
        // The leader goes on as soon as it can.
        if (!leads && is_waited_for(begin)) arrive_some(kTurn + Shape::kLeader, kConsumerThreads);
        products_wait<0>();
        hold(s[0]);
        done_with_keys(begin);
        weigh(begin, s, before, true);
        PackedSums<1, kOctets> some;
        pack(begin, s, some);
        MTL_UNROLL()
        for (int n = 0; n < kN; ++n) {
          MTL_UNROLL()
          for (int half = 0; half < 2; ++half)
            p[0][n][half] = n < kOctets ? some[0][n % kOctets][half] : 0;
        }
      };
      if (begin > before_all) {
        // Of every tile the producer waits for all warps; their turn must have come.
        barriers.keys.wait_for(before_all);
        barriers.keys.done_with(before_all);
        barriers.values.wait_for(before_all);
        barriers.values.done_with(before_all);
      }
      barriers.keys.wait_for(begin);
      constexpr int kSeen = kRows / 8;  // of its tile on the diagonal, by the first one
      if (kSeen < kN && consumer.index == 0) {
        begin_with(std::integral_constant<int, kSeen>{});
      } else {
        begin_with(std::integral_constant<int, kN>{});
      }
      for (int i = begin + 1; i < end; ++i) {
        float s[1][kN][4], before[1][2];
        barriers.keys.wait_for(i);
        sync_some(kTurn + consumer.index, kConsumerThreads);
        multiply_rows<T, kDim>(s[0], shared_address(own), keys_at(i));
        barriers.values.wait_for(i - 1);
        multiply_sums<T, kValueDim>(o[0], p[0], values_at(i - 1));
        if (is_waited_for(i)) arrive_some(kTurn + 1 - consumer.index, kConsumerThreads);
        products_wait<1>();
        hold(s[0]);
        done_with_keys(i);
        const bool rescale = weigh(i, s, before, false);
        products_wait<0>();
        hold(o[0]);
        barriers.values.done_with(i - 1);
        if (rescale) scale_rows(o, before);
        pack(i, s, p);
      }
      barriers.values.wait_for(end - 1);
      multiply_sums<T, kValueDim>(o[0], p[0], values_at(end - 1));
      products_wait<0>();
      hold(o[0]);
      barriers.values.done_with(end - 1);

      float factor[1][2];
      softmax.template finish<T>(w, place, q, factor);
      T* const out =
          static_cast<T*>(w.out) + place.row * w.out_stride + out_column<Shape::kWide>(w, place);
      if constexpr (Shape::kWide) {
        scale_rows(o, factor);
        store_panels<T, kValueDim>(w, consumer, o[0], 1,
                                   rooms + consumer.index * Shape::kRooms / kConsumers, out,
                                   w.out_stride, own_query);
      } else {
        sync_some(kOwnThreads + consumer.index, static_cast<int>(kWarpgroup));
        store_own_rows<T, kDim>(w, consumer, o, factor, own, out, w.out_stride, own_query);
        // The copy engine is to write there next.
        written_for_products();
        barriers.queries.done_with(done);
      }
      before_all = end;
    }
  }
}

}  // namespace

void forward_by_warpgroups(Queue& queue, const AttentionWork& w, DType dtype, void* scratch) {
  fill(queue, Tensor(scratch, DType::f32, {1}), 0);
  const auto forward = [&](auto type, auto dim, auto value_dim, auto limited, auto caps) {
    using T = decltype(type);
    constexpr int kDim = decltype(dim)::value, kValueDim = decltype(value_dim)::value;
    constexpr bool kLimited = decltype(limited)::value, kCaps = decltype(caps)::value;
    using Shape = ForwardShape<kDim, kValueDim>;
    const BlockOrder order = order_of_queries(w, Shape::kQueries);
    const dim3 grid(std::min(grid_of(order).x, static_cast<unsigned>(queue.multiprocessors())));
    launch(attention_forward_warpgroups<T, kDim, kValueDim, kLimited, kCaps>, grid, dim3(kThreads),
           Shape::kSharedBytes, queue.stream(), w, order, static_cast<unsigned*>(scratch),
           map_of_keys<T, kDim>(w), map_of_values<T, kValueDim>(w));
  };
  if (w.head_dim > 128) {
    with_wide_form(w, dtype, [&](auto type, auto dim, auto value_dim, auto caps) {
      forward(type, dim, value_dim, std::true_type{}, caps);
    });
  } else {
    with_form(w, dtype, [&](auto type, auto dim, auto limited, auto caps) {
      forward(type, dim, dim, limited, caps);
    });
  }
}

}  // namespace mtl::cuda
