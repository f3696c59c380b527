// Attention forward on Hopper (attention_panels.h).
#include "runtime/device/cuda/attention_panels.h"
#include "runtime/device/cuda/attention_warpgroups.h"

namespace mtl::cuda {
namespace {

using namespace warpgroups;

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
  know_pass(w);
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

}  // namespace mtl::cuda
