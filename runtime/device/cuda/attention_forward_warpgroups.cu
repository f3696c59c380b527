// Attention forward on Hopper (attention_panels.h).
#include "runtime/device/cuda/attention_panels.h"
#include "runtime/device/cuda/attention_warpgroups.h"
#include "runtime/device/cuda/ops.h"

namespace mtl::cuda {
namespace {

using namespace warpgroups;

template <int kDim>
struct ForwardShape {
  static constexpr int kQueries = kConsumers * kRows, kKeys = 128, kStages = 2;
  static constexpr unsigned kTile = Panels<kDim>::tile_bytes(kKeys);
  static constexpr unsigned kQueryTile = kConsumers * Panels<kDim>::kOwnBytes;
  struct Barriers {
    Stages<kStages> queries, keys, values;
    int numbers[kStages];  // of the tiles of queries, from the producer
  };
  static constexpr size_t kSharedBytes =
      kStages * (kQueryTile + 2 * kTile) + sizeof(Barriers) + kAlignment;
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
template <typename T, int kDim, bool kLimited>
__global__ void __launch_bounds__(kThreads, 1)
    attention_forward_warpgroups(AttentionWork w, BlockOrder order, unsigned* taken,
                                 const MTL_GRID_CONSTANT TensorMap qkv) {
  using Shape = ForwardShape<kDim>;
  using Tile = Panels<kDim>;
  constexpr int kN = Shape::kKeys / 8;
  MTL_DYNAMIC_SHARED(shared);
  unsigned char* const queries = aligned_shared(shared);
  unsigned char* const keys = queries + Shape::kStages * Shape::kQueryTile;
  unsigned char* const values = keys + Shape::kStages * Shape::kTile;
  auto& barriers =
      *reinterpret_cast<typename Shape::Barriers*>(values + Shape::kStages * Shape::kTile);
  const int all_tiles = order.heads * order.tiles;
  know_pass(w);

  if (threadIdx.x == 0) {
    fetch_map(qkv);
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
        barriers.numbers[done % Shape::kStages] = number;
        Barrier& full = barriers.queries.full[done % Shape::kStages];
        arrive_expecting(full, kConsumers * Tile::tile_bytes(kRows));
        unsigned char* const to = queries + done % Shape::kStages * Shape::kQueryTile;
        for (int i = 0; i < kConsumers; ++i) {
          copy_rows<kDim, kRows>(to + i * Tile::kOwnBytes, qkv, full, tile.place.head,
                                 tile.first + i * kRows, tile.sequence);
        }
        bring_keys<kDim, Shape>(w, tile.place, tile.sequence, tile.seen, before, qkv, keys, values,
                                barriers);
        before += tile.seen.count;
        ++done;
        number = next;
      }
      barriers.queries.wait_to_write(done);
      barriers.numbers[done % Shape::kStages] = number;  // one that is not there
      arrive(barriers.queries.full[done % Shape::kStages]);
    }
  } else {
    take_registers<kConsumerRegisters>();
    const Consumer consumer = consumer_of_thread();
    int before_all = 0;
    for (int done = 0;; ++done) {
      barriers.queries.wait_for(done);
      const int number = of_warp(barriers.numbers[done % Shape::kStages]);
      if (number >= all_tiles) break;
      const auto [sequence, first, place, seen] = forward_tile<Shape, kLimited>(w, order, number);
      unsigned char* const own =
          queries + done % Shape::kStages * Shape::kQueryTile + consumer.index * Tile::kOwnBytes;
      const int own_query = first + consumer.index * kRows;
      const int warp_query = own_query + 16 * consumer.warp;
      const int q = warp_query + consumer.lane / 4;  // of this lane's first sums
      const float slope = w.slopes != nullptr ? w.slopes[place.head] : 0.0f;
      const int end = before_all + seen.count;
      const auto keys_at = [&](int i) {
        return shared_address(keys + i % Shape::kStages * Shape::kTile);
      };
      const auto values_at = [&](int i) {
        return shared_address(values + i % Shape::kStages * Shape::kTile);
      };
      const auto first_key = [&](int i) { return seen.at(i - before_all) * Shape::kKeys; };

      float o[1][kDim / 8][4];
      clear(o);
      RunningSoftmax<1> softmax;
      softmax.clear();
      PackedSums<1, kN> p;
      // Scores of tile i become weights; returns whether o is to be scaled by `before`.
      const auto weigh = [&](int i, auto& s, float(&before)[1][2], bool diagonal) {
        const int own_key = first_key(i) + consumer.lane % 4 * 2;
        const float factor = finish_scores(w, slope, s, own_key - q, diagonal);
        if constexpr (kLimited) hide_keys(w, place.row, s, q, own_key, factor);
        return softmax.add(s, factor, before);
      };
      const auto pack = [&](int i, auto& s, auto& to) {
        const int64_t element = int64_t{warp_query} * w.seq + first_key(i);
        pack_weights<T>(w, place.first + static_cast<uint64_t>(element), s, to);
      };

      // The tile on the diagonal. The first consumer's queries see half of it: its exponentials,
      // which take longest, are half as many; the products with its zeros are few.
      static_assert(Shape::kQueries == Shape::kKeys && Shape::kKeys == kConsumers * kRows);
      const auto begin = [&](auto octets) {
        constexpr int kOctets = decltype(octets)::value;
        float s[1][kOctets][4], before[1][2];
        multiply_rows<T, kDim, Shape::kKeys>(s[0], shared_address(own), keys_at(before_all));
        // The first one goes on as soon as it can.
        if (consumer.index == 1 && seen.count > 1) arrive_some(kTurn, kConsumerThreads);
        products_wait<0>();
        hold(s[0]);
        barriers.keys.done_with(before_all);
        weigh(before_all, s, before, true);
        PackedSums<1, kOctets> some;
        pack(before_all, s, some);
        MTL_UNROLL()
        for (int n = 0; n < kN; ++n) {
          MTL_UNROLL()
          for (int half = 0; half < 2; ++half)
            p[0][n][half] = n < kOctets ? some[0][n % kOctets][half] : 0;
        }
      };
      barriers.keys.wait_for(before_all);
      if (consumer.index == 0) {
        begin(std::integral_constant<int, kN / 2>{});
      } else {
        begin(std::integral_constant<int, kN>{});
      }
      for (int i = before_all + 1; i < end; ++i) {
        float s[1][kN][4], before[1][2];
        barriers.keys.wait_for(i);
        sync_some(kTurn + consumer.index, kConsumerThreads);
        multiply_rows<T, kDim>(s[0], shared_address(own), keys_at(i));
        barriers.values.wait_for(i - 1);
        multiply_sums<T, kDim>(o[0], p[0], values_at(i - 1));
        // The last turn is the second one's.
        if (consumer.index == 0 || i + 1 < end) {
          arrive_some(kTurn + 1 - consumer.index, kConsumerThreads);
        }
        products_wait<1>();
        hold(s[0]);
        barriers.keys.done_with(i);
        const bool rescale = weigh(i, s, before, false);
        products_wait<0>();
        hold(o[0]);
        barriers.values.done_with(i - 1);
        if (rescale) scale_rows(o, before);
        pack(i, s, p);
      }
      barriers.values.wait_for(end - 1);
      multiply_sums<T, kDim>(o[0], p[0], values_at(end - 1));
      products_wait<0>();
      hold(o[0]);
      barriers.values.done_with(end - 1);

      float factor[1][2];
      softmax.finish(w, place, q, factor);
      sync_some(kOwnThreads + consumer.index, static_cast<int>(kWarpgroup));
      store_own_rows<T, kDim>(
          w, consumer, o, factor, own,
          static_cast<T*>(w.out) + place.row * w.out_stride + query_column(w, place), w.out_stride,
          own_query);
      // The copy engine is to write there next.
      written_for_products();
      barriers.queries.done_with(done);
      before_all = end;
    }
  }
}

}  // namespace

void forward_by_warpgroups(Queue& queue, const AttentionWork& w, DType dtype, void* scratch) {
  fill(queue, Tensor(scratch, DType::f32, {1}), 0);
  with_form(w, dtype, [&](auto type, auto dim, auto limited) {
    using T = decltype(type);
    constexpr int kDim = decltype(dim)::value;
    using Shape = ForwardShape<kDim>;
    const BlockOrder order = order_of_queries(w, Shape::kQueries);
    const dim3 grid(std::min(grid_of(order).x, static_cast<unsigned>(queue.multiprocessors())));
    launch(attention_forward_warpgroups<T, kDim, decltype(limited)::value>, grid, dim3(kThreads),
           Shape::kSharedBytes, queue.stream(), w, order, static_cast<unsigned*>(scratch),
           map_of_qkv<T, kDim>(w));
  });
}

}  // namespace mtl::cuda
