// What the memory-bound kernels share: packs of elements, loops over elements, sums over the
// threads of a row, Philox.
//
// Two paths through memory, chosen once per launch on the host: packs of N elements that are 16
// bytes, where every address allows it, else N = 1 (tensors at odd addresses, widths that are no
// multiple of a pack). Kernels are written once, for any N.
//
// The floor of such a kernel is the bytes it has to move over the memory's bandwidth: each file
// says how many bytes per element its kernels read and write.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>

#include "runtime/device/cuda/ops.h"
#include "runtime/device/kernel_scratch.h"

#if defined(__CUDACC__)
#define MTL_PRAGMA(text) _Pragma(#text)
#define MTL_UNROLL(times) MTL_PRAGMA(unroll times)
// Whole, where an array of registers is gone through: of a loop of one turn a number would become
// that of the loop in it.
#define MTL_UNROLL_ALL MTL_PRAGMA(unroll)
#else
#define MTL_UNROLL(times)
#define MTL_UNROLL_ALL
#endif

namespace mtl::cuda {

inline constexpr int kBlock = 256;  // threads of a block where nothing else is said
inline constexpr int kWarps = kBlock / static_cast<int>(kWarp);
// So many fill a multiprocessor's 2,048 threads.
inline constexpr int kBlocksPerMultiprocessor = 8;

template <typename T>
inline constexpr int kPackOf = 16 / static_cast<int>(sizeof(T));

// --- on the host

// body(T{}) for the type of activations.
template <typename Body>
void with_type(DType dtype, Body body) {
  if (dtype == DType::bf16) {
    body(Bf16{});
  } else if (dtype == DType::f16) {
    body(Half{});
  } else {
    body(float{});
  }
}

template <int N>
using Constant = std::integral_constant<int, N>;

// body(Constant<packs ? N : 1>).
template <int N, typename Body>
void with_pack(bool packs, Body body) {
  if (packs) {
    body(Constant<N>{});
  } else {
    body(Constant<1>{});
  }
}

inline bool aligned(std::initializer_list<const void*> pointers, size_t bytes = 16) {
  return std::all_of(pointers.begin(), pointers.end(), [bytes](const void* p) {
    return reinterpret_cast<uintptr_t>(p) % bytes == 0;
  });
}

using kernel_scratch::divide_up;

// The blocks of a grid that strides over `work`, of which a block takes `per_block` at a time.
inline dim3 blocks_for(const Queue& queue, int64_t work, int64_t per_block) {
  const int64_t most = int64_t{queue.multiprocessors()} * kBlocksPerMultiprocessor;
  return dim3(static_cast<unsigned>(std::min(divide_up(work, per_block), most)));
}

using kernel_scratch::RowChunks;

// reduction.cu: out[c] (+)= the sum over the chunks of partials[chunk * stride + c], in order; and
// of partials[chunk * stride + cols + c] in `second`, if there is one.
void combine(Queue& queue, const float* partials, int64_t chunks, int64_t stride, int64_t cols,
             float* out, bool accumulate, float* second = nullptr);

// --- elements

template <int N>
struct Floats {
  float at[N] = {};
};

// N elements at a multiple of their size, or of 16 bytes.
template <int N, typename T>
__device__ inline Floats<N> load(const T* from) {
  constexpr int kPiece = N < kPackOf<T> ? N : kPackOf<T>;
  Floats<N> result;
  for (int first = 0; first < N; first += kPiece) {
    const auto pack = *reinterpret_cast<const Pack<T, kPiece>*>(from + first);
    for (int k = 0; k < kPiece; ++k) result.at[first + k] = to_float(pack.at[k]);
  }
  return result;
}
// Two f32 rounded to 16 bits as they lie in memory, the first in the lower half. The instruction
// itself: nvcc takes the result of the library's function apart where it is changed later.
template <typename T>
__device__ inline uint32_t pack_two(float low, float high) {
#if defined(__CUDA_ARCH__)
  uint32_t both;
  if constexpr (std::is_same_v<T, Bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  }
  return both;
#else
  return uint32_t{from_float<T>(high).bits} << 16 | from_float<T>(low).bits;
#endif
}
// By one instruction: nvcc cuts an assignment of a pack, or of a uint4, into its elements where the
// loop around it is unrolled (seen in its PTX), but not this.
template <int kWords>
__device__ inline void store_words(void* to, const uint32_t (&words)[kWords]) {
#if defined(__CUDACC__)
  if constexpr (kWords == 4) {
    __stwb(static_cast<uint4*>(to), make_uint4(words[0], words[1], words[2], words[3]));
  } else if constexpr (kWords == 2) {
    __stwb(static_cast<uint2*>(to), make_uint2(words[0], words[1]));
  } else {
    *static_cast<uint32_t*>(to) = words[0];
  }
#else
  std::memcpy(to, words, sizeof words);
#endif
}
__device__ inline uint32_t word_of(float x) {
#if defined(__CUDACC__)
  return __float_as_uint(x);
#else
  return __builtin_bit_cast(uint32_t, x);
#endif
}
__device__ inline float float_of(uint32_t word) {
#if defined(__CUDACC__)
  return __uint_as_float(word);
#else
  return __builtin_bit_cast(float, word);
#endif
}

template <int N, typename T>
__device__ inline void store(T* to, const Floats<N>& values) {
  if constexpr (N == 1) {
    *to = from_float<T>(values.at[0]);
  } else {
    constexpr int kPiece = N < kPackOf<T> ? N : kPackOf<T>;
    constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));
    for (int first = 0; first < N; first += kPiece) {
      uint32_t words[kPiece / kPerWord];
      for (int k = 0; k < kPiece; k += kPerWord) {
        if constexpr (kPerWord == 2) {
          words[k / 2] = pack_two<T>(values.at[first + k], values.at[first + k + 1]);
        } else {
          words[k] = word_of(values.at[first + k]);
        }
      }
      store_words(to + first, words);
    }
  }
}

// Of two bf16 in a word each is one instruction away; element by element nvcc takes three.
template <typename T, int N>
__device__ inline Floats<N> widened(Pack<T, N> pack) {
  Floats<N> result;
  if constexpr (std::is_same_v<T, Bf16> && N % 2 == 0) {
    uint32_t words[N / 2];
    memcpy(words, &pack, sizeof words);
    for (int k = 0; k < N; k += 2) {
      result.at[k] = float_of(words[k / 2] << 16);
      result.at[k + 1] = float_of(words[k / 2] & 0xffff0000u);
    }
  } else {
    for (int k = 0; k < N; ++k) result.at[k] = to_float(pack.at[k]);
  }
  return result;
}
// What store() writes, and that written.
template <typename T, int N>
__device__ inline Pack<T, N> rounded(const Floats<N>& values) {
  constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));
  uint32_t words[N / kPerWord];
  for (int k = 0; k < N; k += kPerWord) {
    if constexpr (kPerWord == 2) {
      words[k / 2] = pack_two<T>(values.at[k], values.at[k + 1]);
    } else {
      words[k] = word_of(values.at[k]);
    }
  }
  Pack<T, N> result;
  static_assert(sizeof result == sizeof words);
  memcpy(&result, words, sizeof words);
  return result;
}
template <typename T, int N>
__device__ inline void store_pack(T* to, const Pack<T, N>& pack) {
  uint32_t words[sizeof pack / 4];
  memcpy(words, &pack, sizeof words);
  store_words(to, words);
}

// op.at<N>(i) for every pack, op.at<1>(i) for what is left behind the last.
template <int N, typename Op>
__global__ void __launch_bounds__(kBlock) each_kernel(Op op, int64_t n) {
  const int64_t packs = n / N;
  const int64_t threads = int64_t{gridDim.x} * kBlock;
  const int64_t me = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  for (int64_t pack = me; pack < packs; pack += threads) op.template at<N>(pack * N);
  if constexpr (N > 1) {
    const int64_t i = packs * N + me;
    if (i < n) op.template at<1>(i);
  }
}
template <int N, typename Op>
void each(Queue& queue, int64_t n, const Op& op) {
  // The last elements need up to N - 1 threads.
  launch(each_kernel<N, Op>, blocks_for(queue, n, int64_t{kBlock} * N), dim3(kBlock), 0,
         queue.stream(), op, n);
}

// --- teams: kTeam threads that share a row: one warp of several in a block, the whole block, or,
// where the block has kThreads, some of its warps, for which the other teams do not wait.

template <int kTeam, int kThreads>
__device__ inline void team_barrier() {
  if constexpr (kThreads > kTeam) {
    static_assert(kThreads / kTeam < 16);
    sync_some(static_cast<int>(1 + threadIdx.x / kTeam), kTeam);
  } else {
    __syncthreads();
  }
}

// The sums over a team of each of the values, on all its threads, in a fixed order. `shared` has
// room for the values of every warp of the block; all threads of a team have to come.
template <int kTeam, int kThreads = kTeam, int kValues>
__device__ inline void team_sum(float (&values)[kValues], float* shared) {
  for (int i = 0; i < kValues; ++i) values[i] = warp_sum(values[i]);
  if constexpr (kTeam > static_cast<int>(kWarp)) {
    constexpr int kTeamWarps = kTeam / static_cast<int>(kWarp);
    const unsigned warp = threadIdx.x / kWarp;
    float* const first =
        kThreads > kTeam ? shared + threadIdx.x / kTeam * kTeamWarps * kValues : shared;
    team_barrier<kTeam, kThreads>();  // some may still read the last sums
    if (threadIdx.x % kWarp == 0) {
      for (int i = 0; i < kValues; ++i) shared[warp * kValues + i] = values[i];
    }
    team_barrier<kTeam, kThreads>();
    for (int i = 0; i < kValues; ++i) {
      float sum = first[i];
      for (int w = 1; w < kTeamWarps; ++w) sum += first[w * kValues + i];
      values[i] = sum;
    }
  }
}

template <int kTeam>
__device__ inline float team_max(float value, float* shared) {
  value = warp_max(value);
  if constexpr (kTeam > static_cast<int>(kWarp)) {
    __syncthreads();
    if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
    __syncthreads();
    for (int w = 0; w < kTeam / static_cast<int>(kWarp); ++w) value = fmaxf(value, shared[w]);
  }
  return value;
}

// --- dropout

// Dropout as kernels take it: word >= probability * 2^32 for an integer word, so the threshold is
// the product rounded up, exact in f64 and below 2^32 for every float below 1.
struct EnqueuedMask {
  EnqueuedMask() = default;
  explicit EnqueuedMask(const Dropout& dropout) {
    if (!dropout) return;
    const auto probability = static_cast<double>(dropout.probability);
    threshold = static_cast<uint32_t>(std::ceil(std::ldexp(probability, 32)));
    scale = static_cast<float>(1.0 / (1.0 - probability));
    layer = dropout.layer;
    site = dropout.site;
    sequence_elements = dropout.sequence_elements;
    pass = dropout.pass.as<const DropoutPass>();
  }
  uint32_t threshold = 0;
  float scale = 1;
  int64_t layer = 0, site = 0, sequence_elements = 0;
  const DropoutPass* pass = nullptr;
};
// The same for the pass that is there when the kernel runs: each thread asks once, at its start.
struct Mask {
  uint32_t threshold = 0;
  float scale = 1;
  uint64_t key = 0;
  uint64_t first = 0;  // the number of the pass's first element
};
__device__ inline Mask mask_of(const EnqueuedMask& mask) {
  const DropoutPass pass = *mask.pass;
  return {mask.threshold, mask.scale, dropout_key(pass.step_key, mask.layer, mask.site),
          first_dropout_element(pass, mask.sequence_elements)};
}

// Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC'11)
// of counter (counter, 0).
__device__ inline void philox(uint64_t counter, uint64_t key, uint32_t (&words)[4]) {
  uint32_t x0 = static_cast<uint32_t>(counter), x1 = static_cast<uint32_t>(counter >> 32);
  uint32_t x2 = 0, x3 = 0;
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  MTL_UNROLL(10)
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53u, x0), low0 = 0xD2511F53u * x0;
    const uint32_t high1 = __umulhi(0xCD9E8D57u, x2), low1 = 0xCD9E8D57u * x2;
    x0 = high1 ^ x1 ^ key0;
    x1 = low1;
    x2 = high0 ^ x3 ^ key1;
    x3 = low0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  words[0] = x0, words[1] = x1, words[2] = x2, words[3] = x3;
}

// The factors of elements first .. first + N - 1; with N > 1, `first` is a multiple of four: then
// one Philox makes four of them.
template <int N>
__device__ inline Floats<N> mask_factors(const Mask& mask, uint64_t first) {
  static_assert(N == 1 || N % 4 == 0);
  Floats<N> factors;
  uint32_t words[4];
  if constexpr (N == 1) {
    philox(first / 4, mask.key, words);
    const unsigned i = first % 4;
    const uint32_t word = i < 2 ? (i == 0 ? words[0] : words[1]) : (i == 2 ? words[2] : words[3]);
    factors.at[0] = word >= mask.threshold ? mask.scale : 0.0f;
  } else {
    for (int quad = 0; quad < N / 4; ++quad) {
      philox(first / 4 + static_cast<uint64_t>(quad), mask.key, words);
      for (int k = 0; k < 4; ++k) {
        factors.at[4 * quad + k] = words[k] >= mask.threshold ? mask.scale : 0.0f;
      }
    }
  }
  return factors;
}

}  // namespace mtl::cuda
