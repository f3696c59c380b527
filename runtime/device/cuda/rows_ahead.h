// Rows that a block sums and writes, a few at a time, while the next few are on their way.
//
// A row that is loaded, summed over its threads and written keeps the memory busy for a part of
// that time only, and the narrower it is the shorter that part. Here a thread has the same columns
// of every row of its block: what belongs to columns (gamma, sums over rows) stays in registers,
// and the packs of the next rows come by asynchronous copies, at least a whole round of them under
// way all the time. A thread reads what it has copied itself, so that barriers are those of the
// sums alone, one for all rows of a round. Warps are as many as the columns need: none is idle, and
// of the last one only lanes.
#pragma once

#include "runtime/device/cuda/kernels.h"

namespace mtl::cuda {

// How many packs of a row a thread has, how many rows a round, and the most threads of a block.
template <int kHeld_, int kRows_, int kThreads_>
struct RowShape {
  static constexpr int kHeld = kHeld_, kRows = kRows_, kThreads = kThreads_;
  static constexpr int kMostWarps = kThreads / static_cast<int>(kWarp);
  static constexpr int kMostPacks = kHeld * kThreads;
  static int threads(int64_t packs) {
    return static_cast<int>(divide_up(packs, int64_t{kHeld} * kWarp) * kWarp);
  }
};
// body(RowShape) for rows of so many packs; false where there is none for them.
template <typename Body>
bool with_row_shape(int64_t packs, Body body) {
  // In a block's two rounds lie at most 96 KB of three tensors: any GPU since sm_80 has room.
  using Narrow = RowShape<1, 4, 256>;
  using Wide = RowShape<2, 2, 256>;
  using Widest = RowShape<2, 1, 512>;
  if (packs <= Narrow::kMostPacks) {
    body(Narrow{});
  } else if (packs <= Wide::kMostPacks) {
    body(Wide{});
  } else if (packs <= Widest::kMostPacks) {
    body(Widest{});
  } else {
    return false;
  }
  return true;
}

// The blocks of a grid that share `rounds` of rows: as many as a multiprocessor has room for at
// once, by registers for so many threads and by shared memory (an A100's, which is the least).
inline dim3 blocks_that_stay(const Queue& queue, int64_t rounds, int threads, int most_threads,
                             size_t bytes) {
  constexpr int64_t kShared = int64_t{164} << 10, kBeside = 2 << 10;  // sums, and the driver's
  const int64_t each =
      std::min<int64_t>(most_threads / threads, kShared / (static_cast<int64_t>(bytes) + kBeside));
  return dim3(static_cast<unsigned>(
      std::min(rounds, int64_t{queue.multiprocessors()} * std::clamp<int64_t>(each, 1, 32))));
}

// Two rounds in dynamic shared memory, of kTensors tensors: one that is read, one that comes.
template <typename T, int N, typename Shape, int kTensors>
class RowsAhead {
 public:
  static_assert(sizeof(Pack<T, N>) == 16);
  static size_t bytes(int threads) {
    return size_t{2} * kTensors * Shape::kRows * Shape::kHeld * sizeof(Pack<T, N>) *
           static_cast<size_t>(threads);
  }

  __device__ RowsAhead(unsigned char* memory, int cols)
      : mine_(reinterpret_cast<Pack<T, N>*>(memory) + threadIdx.x), cols_(cols) {}

  // The first of a thread's j-th pack.
  __device__ int column(int j) const {
    return (j * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * N;
  }
  __device__ bool has(int j) const { return column(j) < cols_; }

  // The rows from `first` on into the round behind the present one; those behind the first `live`
  // are zeros there.
  __device__ void fetch(int tensor, const T* first, int live) {
    MTL_UNROLL_ALL
    for (int j = 0; j < Shape::kHeld; ++j) {
      if (!has(j)) continue;
      MTL_UNROLL_ALL
      for (int r = 0; r < Shape::kRows; ++r) {
        copy_async(slot(1 - round_, tensor, r, j), first + int64_t{r} * cols_ + column(j),
                   r < live);
      }
    }
  }
  // What has been fetched is the present round, once next() was called before the next fetch.
  __device__ void fetched() { copy_async_commit(); }
  __device__ void next() { round_ = 1 - round_; }
  // Until the present round is there, while the one behind it comes.
  __device__ void wait() { copy_async_wait<1>(); }
  __device__ Pack<T, N> at(int tensor, int row, int j) const {
    return *slot(round_, tensor, row, j);
  }

 private:
  __device__ Pack<T, N>* slot(int round, int tensor, int row, int j) const {
    const int i = ((round * kTensors + tensor) * Shape::kRows + row) * Shape::kHeld + j;
    return mine_ + i * static_cast<int>(blockDim.x);
  }
  Pack<T, N>* mine_;
  int cols_, round_ = 1;
};

// The sums over a block of each of kValues, a power of two: lane l of every warp has that of value
// l % kValues. In a fixed order: halves of a warp share the values, then quarters, and warps are
// added in order. One barrier; all threads have to come.
template <int kValues, int kMostWarps>
class BlockSums {
 public:
  __device__ float operator()(float (&values)[kValues]) {
    __shared__ float shared[2][kMostWarps][kValues];
    static_assert(kValues <= static_cast<int>(kWarp) && (kValues & (kValues - 1)) == 0);
    constexpr unsigned kSame = kWarp / kValues;  // lanes with the same value, at the end
    const unsigned lane = threadIdx.x % kWarp;
    int count = kValues;
    MTL_UNROLL_ALL
    for (unsigned step = kWarp / 2; step > 0; step /= 2) {
      if (count > 1) {
        count /= 2;
        const bool upper = (lane & step) != 0;
        for (int i = 0; i < count; ++i) {
          const float keep = upper ? values[count + i] : values[i];
          const float give = upper ? values[i] : values[count + i];
          values[i] = keep + __shfl_xor_sync(kAllLanes, give, step);
        }
      } else {
        values[0] += __shfl_xor_sync(kAllLanes, values[0], step);
      }
    }
    // In turns: who comes to the next sum's barrier has read the one before.
    turn_ = 1 - turn_;
    if (lane % kSame == 0) shared[turn_][threadIdx.x / kWarp][lane / kSame] = values[0];
    __syncthreads();
    float sum = shared[turn_][0][lane % kValues];
    for (unsigned w = 1; w < kMostWarps; ++w) {
      if (w * kWarp < blockDim.x) sum += shared[turn_][w][lane % kValues];
    }
    return sum;
  }

 private:
  int turn_ = 0;
};

}  // namespace mtl::cuda
