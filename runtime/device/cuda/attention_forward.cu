// Attention forward: the kernel for tensor cores, and which path a call takes.
#include <type_traits>

#include "runtime/device/attention_arguments.h"
#include "runtime/device/cuda/attention_rows.h"
#include "runtime/device/cuda/attention_tiles.h"
#include "runtime/device/cuda/attention_warpgroups.h"

namespace mtl::cuda {

namespace {

template <int kDim, int kValueDim>
struct ForwardTiles {
  static constexpr int kWarps = 4, kM = kDim == 256 ? 1 : 2;  // a warp has 16 kM queries
  static constexpr int kQueries = kWarps * 16 * kM, kKeys = kDim == 64 ? 48 : 32;
  static constexpr int kThreads = kWarps * static_cast<int>(kWarp);
  static constexpr int kRow = kRowElements<kDim>, kValueRow = kRowElements<kValueDim>;
  // Queries, and two stages of keys and values.
  static constexpr size_t kSharedBytes =
      sizeof(uint16_t) * (kRow * (kQueries + 2 * kKeys) + kValueRow * 2 * kKeys);
};

template <typename T, int kDim, int kValueDim, bool kLimited>
__global__ void __launch_bounds__(ForwardTiles<kDim, kValueDim>::kThreads, 2)
    attention_forward_tiles(AttentionWork w, BlockOrder order) {
  using Tiles = ForwardTiles<kDim, kValueDim>;
  constexpr int kM = Tiles::kM, kN = Tiles::kKeys / 8;
  constexpr bool kNarrow = kNarrowValues<kDim>;
  MTL_DYNAMIC_SHARED(shared);
  T* const queries = reinterpret_cast<T*>(shared);
  T* const stages = queries + Tiles::kQueries * Tiles::kRow;
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

  const int warp = static_cast<int>(threadIdx.x / kWarp),
            lane = static_cast<int>(threadIdx.x % kWarp);
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
  int first_tile = 0;
  if constexpr (kLimited) first_tile = first_seen(w, place.row, first) / Tiles::kKeys;
  copy_keys(first_tile, first_tile % 2);
  copy_async_commit();

  float o[kM][kValueDim / 8][4];
  clear(o);
  RunningSoftmax<kM> softmax;
  softmax.clear();
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
    float s[kM][kN][4];
    clear(s);
    multiply_rows<T, kDim>(s, queries + warp_row * Tiles::kRow + offsets.a, keys + offsets.b);
    cap_scores(w, s);
    const float factor =
        finish_scores(w, slope, s, k + lane % 4 * 2 - q, k + Tiles::kKeys - 1 > warp_query);
    if constexpr (kLimited) hide_keys(w, place.row, s, q, k + lane % 4 * 2, factor);
    float before[kM][2];
    if (softmax.add(s, factor, before)) scale_rows(o, before);
    PackedSums<kM, kN> p;
    const int64_t element = int64_t{warp_query} * w.seq + k;
    pack_weights<T>(w, place.first + static_cast<uint64_t>(element), s, p);
    multiply_sums<T, kValueDim>(o, p, keys + kValues + value_offsets.a);
  }
  if (warp_query >= w.seq) return;

  float factor[kM][2];
  softmax.template finish<T>(w, place, q, factor);
  T* const out = static_cast<T*>(w.out) + (place.row + warp_query) * w.out_stride +
                 out_column<kNarrow>(w, place);
  store_rows<T, kValueDim>(o, factor, queries + warp_row * Tiles::kRow, out, w.out_stride,
                           w.seq - warp_query, value_dim_of<kNarrow>(w));
}

template <typename T>
void forward_as(Queue& queue, const AttentionWork& w, bool tiles) {
  if constexpr (!std::is_same_v<T, float>) {
    if (tiles) {
      with_tile_dims(w, [&](auto dim, auto value_dim) {
        constexpr int kDim = decltype(dim)::value, kValueDim = decltype(value_dim)::value;
        using Tiles = ForwardTiles<kDim, kValueDim>;
        static_assert(Tiles::kSharedBytes <= kLeastShared);
        const BlockOrder order = order_of_queries(w, Tiles::kQueries);
        with_tile_limits<kDim>(w, [&](auto limited) {
          launch(attention_forward_tiles<T, kDim, kValueDim, decltype(limited)::value>,
                 grid_of(order), dim3(Tiles::kThreads), Tiles::kSharedBytes, queue.stream(), w,
                 order);
        });
      });
      return;
    }
  }
  launch(attention_forward_rows<T>, grid_of_rows(w, w.heads, w.first_query),
         dim3(kRowWarps * kWarp), rows_shared_bytes(w, 2, 1), queue.stream(), w);
}

}  // namespace

void attention_forward(Queue& queue, const Attention& args) {
  const AttentionShape& s = args.shape;
  check_attention(args);
  if (s.batch == 0 || s.first_query == s.seq) return;
  AttentionWork w = attention_work(s, args.qkv, args.out, args.lse);
  const int64_t slopes = s.alibi ? s.heads * int64_t{sizeof(float)} : 0;
  auto* const memory = static_cast<unsigned char*>(queue.scratch(kForwardScratch + slopes));
  prepare_slopes(queue, s, w, reinterpret_cast<float*>(memory + kForwardScratch));
  const bool is_aligned = aligned(args.qkv) && aligned(args.out);
  if (is_aligned && (fits_warpgroups(queue, s, args.qkv.dtype) ||
                     fits_wide_warpgroups(queue, s, args.qkv.dtype))) {
    return forward_by_warpgroups(queue, w, args.qkv.dtype, memory);
  }
  const bool tiles = is_aligned && fits_tiles(s);
  with_type(args.qkv.dtype, [&](auto type) { forward_as<decltype(type)>(queue, w, tiles); });
}

const char* own_attention_kind(const Queue& queue, const AttentionShape& s, DType dtype) {
  if (fits_warpgroups(queue, s, dtype) || fits_wide_warpgroups(queue, s, dtype)) return "wgmma";
  return dtype != DType::f32 && fits_tiles(s) ? "mma" : "no tensor cores";
}

}  // namespace mtl::cuda
