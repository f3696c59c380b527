// Token embeddings. Bytes per element of the rows, with s the size of the type: forward 2 s (the
// table's rows are read once per token that has them).
//
// The gradient adds the tokens of an id in their order, without floating-point atomics: tokens are
// sorted by id with a stable radix sort, and then one warp per id and 32 packs of columns walks the
// id's tokens. Of n tokens, v ids that occur and c columns it moves n c s + 8 v c bytes, and for
// the sort and its lists about 60 n: 100 MB, 6 KB per id that occurs and 4 MB at 65,536 tokens and
// 768 columns of 16 bits, whatever the size of the vocabulary. A very frequent id is one chain of
// additions, which its loads do not wait for.
#include "runtime/device/cuda/kernels.h"

namespace mtl::cuda {

namespace {

template <typename T>
struct Forward {
  const int32_t* tokens;
  const T* table;
  T* out;
  int64_t n, cols, first, table_rows;
};

// A warp per token.
template <typename T, int N>
__global__ void __launch_bounds__(kBlock) forward_kernel(Forward<T> a) {
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  for (int64_t i = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; i < a.n; i += warps) {
    const int64_t row = a.tokens[i] - a.first;
    const bool here = row >= 0 && row < a.table_rows;
    const T* const from = a.table + row * a.cols;
    T* const to = a.out + i * a.cols;
    MTL_UNROLL(4)
    for (int64_t c = threadIdx.x % kWarp * N; c < a.cols; c += kWarp * N) {
      Pack<T, N> pack = {};
      if (here) pack = *reinterpret_cast<const Pack<T, N>*>(from + c);
      *reinterpret_cast<Pack<T, N>*>(to + c) = pack;
    }
  }
}

// --- the sort: passes over digits of nine bits, least significant first. The tokens are cut into
// at most 64 chunks, each the work of one warp that takes 32 tokens at a time, in order.

constexpr int kDigitBits = 9;
constexpr int kDigits = 1 << kDigitBits;
static_assert(kDigits == kernel_scratch::kSortDigits);

// A token and the row of the table that it adds to; ids of other shards have the row behind the
// last.
struct Item {
  int32_t row, token;
};
static_assert(sizeof(Item) == kernel_scratch::kSortItemBytes);

struct Pass {
  const int32_t* tokens;  // the first pass reads these,
  const Item* from;       // later ones these
  Item* to;
  int32_t* counts;  // [kDigits, chunks]: how many; then where the first one goes
  int64_t n, length, first, table_rows;
  int shift, chunks;
};

__device__ inline Item item_of(const Pass& a, int64_t i) {
  if (a.from != nullptr) return a.from[i];
  const int64_t row = a.tokens[i] - a.first;
  const bool here = row >= 0 && row < a.table_rows;
  return {static_cast<int32_t>(here ? row : a.table_rows), static_cast<int32_t>(i)};
}

// The lanes, of those in `present`, that have the same digit.
__device__ inline unsigned peers_of(unsigned digit, unsigned present) {
  unsigned peers = present;
  for (int bit = 0; bit < kDigitBits; ++bit) {
    const bool one = (digit >> bit & 1) != 0;
    const unsigned ones = __ballot_sync(kAllLanes, one ? 1 : 0);
    peers &= one ? ones : ~ones;
  }
  return peers;
}

// Counts (kPlace = false) a chunk's digits; or puts its items behind those of smaller digits, and
// of the same digit in chunks before, in their order.
template <bool kPlace>
__global__ void __launch_bounds__(kWarp) sort_kernel(Pass a) {
  __shared__ int32_t at[kDigits];
  const unsigned lane = threadIdx.x;
  const int chunk = static_cast<int>(blockIdx.x);
  for (int d = static_cast<int>(lane); d < kDigits; d += static_cast<int>(kWarp)) {
    at[d] = kPlace ? a.counts[d * a.chunks + chunk] : 0;
  }
  __syncwarp();
  const int64_t begin = chunk * a.length, end = min(begin + a.length, a.n);
  for (int64_t i = begin; i < end; i += kWarp) {
    const bool here = i + lane < end;
    const Item item = here ? item_of(a, i + lane) : Item{0, 0};
    const unsigned present = __ballot_sync(kAllLanes, here ? 1 : 0);
    const unsigned digit = static_cast<unsigned>(item.row) >> a.shift & (kDigits - 1);
    const unsigned peers = peers_of(digit, present);
    const int before = __popc(peers & ((1u << lane) - 1));
    if constexpr (kPlace) {
      if (here) a.to[at[digit] + before] = item;
      __syncwarp();
    }
    if (here && before == 0) at[digit] += __popc(peers);
    __syncwarp();
  }
  if constexpr (!kPlace) {
    for (int d = static_cast<int>(lane); d < kDigits; d += static_cast<int>(kWarp)) {
      a.counts[d * a.chunks + chunk] = at[d];
    }
  }
}

// counts <- for each digit and chunk, how many items go before. One block: a thread per digit.
__global__ void __launch_bounds__(kDigits) scan_kernel(int32_t* counts, int chunks) {
  __shared__ int32_t totals[2][kDigits];
  const int digit = static_cast<int>(threadIdx.x);
  int32_t* const mine = counts + digit * chunks;
  int32_t total = 0;
  for (int c = 0; c < chunks; ++c) total += mine[c];
  int from = 0;
  totals[from][digit] = total;
  __syncthreads();
  for (int step = 1; step < kDigits; step *= 2, from = 1 - from) {
    totals[1 - from][digit] =
        totals[from][digit] + (digit >= step ? totals[from][digit - step] : 0);
    __syncthreads();
  }
  int32_t at = totals[from][digit] - total;
  for (int c = 0; c < chunks; ++c) {
    const int32_t count = mine[c];
    mine[c] = at;
    at += count;
  }
}

template <typename T>
struct Backward {
  const Item* items;
  const T* dout;
  float* dtable;
  int64_t n, cols, table_rows;
};

// A warp per place of the sorted items; where a row's items begin it takes them all.
template <typename T, int N>
__global__ void __launch_bounds__(kBlock) backward_kernel(Backward<T> a) {
  const unsigned lane = threadIdx.x % kWarp;
  const int64_t column = (int64_t{blockIdx.y} * kWarp + lane) * N;
  const bool mine = column < a.cols;
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  for (int64_t first = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; first < a.n;
       first += warps) {
    const int32_t row = a.items[first].row;
    if (row >= a.table_rows || (first > 0 && a.items[first - 1].row == row)) continue;
    float* const to = a.dtable + row * a.cols + column;
    Floats<N> sums;
    if (mine) sums = load<N>(to);
    // 32 items at a time: each lane reads one, then all take each in turn.
    int count = static_cast<int>(kWarp);
    for (int64_t i = first; count == static_cast<int>(kWarp); i += kWarp) {
      const bool here = i + lane < a.n;
      const Item item = here ? a.items[i + lane] : Item{-1, 0};
      count = __popc(__ballot_sync(kAllLanes, item.row == row ? 1 : 0));
      MTL_UNROLL(8)
      for (int j = 0; j < count; ++j) {
        const int64_t token = __shfl_sync(kAllLanes, item.token, j);
        if (!mine) continue;
        const Floats<N> values = load<N>(a.dout + token * a.cols + column);
        for (int k = 0; k < N; ++k) sums.at[k] += values.at[k];
      }
    }
    if (mine) store(to, sums);
  }
}

}  // namespace

void embedding_forward(Queue& queue, Tensor tokens, Tensor table, int64_t first, Tensor out) {
  with_type(table.dtype, [&](auto type) {
    using T = decltype(type);
    const Forward<T> a = {tokens.as<const int32_t>(),
                          table.as<const T>(),
                          out.as<T>(),
                          tokens.numel(),
                          table.cols(),
                          first,
                          table.rows()};
    const bool packs = aligned({a.table, a.out}) && a.cols % kPackOf<T> == 0;
    with_pack<kPackOf<T>>(packs, [&](auto pack) {
      launch(forward_kernel<T, decltype(pack)::value>, blocks_for(queue, a.n, kWarps), dim3(kBlock),
             0, queue.stream(), a);
    });
  });
}

void embedding_backward(Queue& queue, Tensor tokens, Tensor dout, int64_t first, Tensor dtable) {
  const int64_t n = tokens.numel(), table_rows = dtable.rows();
  if (n == 0) return;
  const int64_t length = kernel_scratch::sort_chunk(n);
  Pass pass = {};
  pass.tokens = tokens.as<const int32_t>();
  pass.n = n;
  pass.length = length;
  pass.first = first;
  pass.table_rows = table_rows;
  pass.chunks = static_cast<int>(divide_up(n, length));
  const int64_t counts = kernel_scratch::sort_counts(n);
  const int64_t items = n * kernel_scratch::kSortItemBytes;
  auto* memory = static_cast<unsigned char*>(queue.scratch(kernel_scratch::embedding_backward(n)));
  pass.counts = reinterpret_cast<int32_t*>(memory);
  Item* const buffers[] = {reinterpret_cast<Item*>(memory + counts),
                           reinterpret_cast<Item*>(memory + counts + items)};
  const dim3 chunks(static_cast<unsigned>(pass.chunks)), warp(kWarp);
  for (int passes = 0; passes == 0 || table_rows >> pass.shift != 0; ++passes) {
    pass.to = buffers[passes % 2];
    launch(sort_kernel<false>, chunks, warp, 0, queue.stream(), pass);
    launch(scan_kernel, dim3(1), dim3(kDigits), 0, queue.stream(), pass.counts, pass.chunks);
    launch(sort_kernel<true>, chunks, warp, 0, queue.stream(), pass);
    pass.from = pass.to;
    pass.shift += kDigitBits;
  }
  with_type(dout.dtype, [&](auto type) {
    using T = decltype(type);
    const Backward<T> a = {pass.from, dout.as<const T>(), dtable.as<float>(),
                           n,         dtable.cols(),      table_rows};
    const bool packs = aligned({a.dout, a.dtable}) && a.cols % kPackOf<T> == 0;
    with_pack<kPackOf<T>>(packs, [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      // Most places are no beginnings, so a block has several in turn.
      dim3 grid = blocks_for(queue, n, kWarps);
      grid.y = static_cast<unsigned>(divide_up(a.cols, int64_t{kWarp} * N));
      launch(backward_kernel<T, N>, grid, dim3(kBlock), 0, queue.stream(), a);
    });
  });
}

}  // namespace mtl::cuda
