// The gradient of attention's sinks: one pass over out and its gradient, 2 s bytes per element with
// s the size of the type, and 4 per row and head for lse.
//
// A few lanes have a head, a pack of its columns each, and a warp a few heads next to each other.
// A lane sums over rows what its own columns give: lanes are added once, at the end of a chunk of
// rows; then the warps of a block, and at last the chunks, in order.
#include "runtime/device/attention_arguments.h"
#include "runtime/device/cuda/column_sums.h"
#include "runtime/device/cuda/exponential.h"

namespace mtl::cuda {

namespace {

template <typename T>
struct SinkRows {
  const T *out, *dout, *sinks;
  const float* lse;
  float* partials;  // [batch * chunks, heads]
  int64_t rows_per_chunk;
  int seq, heads, dim, chunks;  // chunks: of a sequence
};

// A team of lanes has a head; without packs, all of a warp, so that its loads lie together.
template <int N>
inline constexpr int kSinkTeam = N > 1 ? static_cast<int>(kWarp / kernel_scratch::kSinkHeads)
                                       : static_cast<int>(kWarp);
template <int N>
inline constexpr int kSinkTeams = static_cast<int>(kWarp) / kSinkTeam<N>;  // of a warp

template <typename T, int N>
__global__ void __launch_bounds__(kBlock, 4) attention_sinks_kernel(SinkRows<T> a) {
  constexpr int kTeam = kSinkTeam<N>, kTeams = kSinkTeams<N>;
  struct Coming {
    Pack<T, N> out, dout;
    float lse;
  };
  __shared__ float shared[kWarps][kTeams];
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  // Blocks that run together have the heads of the same rows.
  const auto groups = static_cast<unsigned>((a.heads + kTeams - 1) / kTeams);
  const int chunk = static_cast<int>(blockIdx.x / groups);
  const int first_head = static_cast<int>(blockIdx.x % groups) * kTeams;
  const int head = first_head + lane / kTeam;
  const int64_t sequence = chunk / a.chunks, begin = chunk % a.chunks * a.rows_per_chunk;
  float sum = 0;
  if (head < a.heads) {
    const auto count = static_cast<int>(min(a.rows_per_chunk, a.seq - begin));
    const int64_t stride = int64_t{a.heads} * a.dim;
    const int64_t at = (sequence * a.seq + begin) * stride + int64_t{head} * a.dim;
    const float* const lse = a.lse + (sequence * a.heads + head) * a.seq + begin;
    const float sink = to_float(a.sinks[head]);
    for (int column = lane % kTeam * N; column < a.dim; column += kTeam * N) {
      const T* const out = a.out + at + column;
      const T* const dout = a.dout + at + column;
      each_ahead<2>(
          warp, count, kWarps,
          [&](int row) {
            return Coming{*reinterpret_cast<const Pack<T, N>*>(out + row * stride),
                          *reinterpret_cast<const Pack<T, N>*>(dout + row * stride), lse[row]};
          },
          [&](const Coming& here) {
            const Floats<N> o = widened(here.out), gradient = widened(here.dout);
            float product = 0;
            for (int k = 0; k < N; ++k) product = fmaf(o.at[k], gradient.at[k], product);
            sum = fmaf(exp_of(sink - here.lse), product, sum);
          });
    }
  }
  for (int apart = kTeam / 2; apart > 0; apart /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, apart);
  }
  if (lane % kTeam == 0) shared[warp][lane / kTeam] = sum;
  __syncthreads();
  const int team = static_cast<int>(threadIdx.x);
  if (team >= kTeams || first_head + team >= a.heads) return;
  float of_block = shared[0][team];
  for (int w = 1; w < kWarps; ++w) of_block += shared[w][team];
  a.partials[int64_t{chunk} * a.heads + first_head + team] = -of_block;
}

}  // namespace

void attention_sinks_backward(Queue& queue, const AttentionSinksBackward& args) {
  const AttentionShape& s = args.shape;
  check_attention(args);
  const kernel_scratch::AttentionSize size = {s.batch, s.seq, s.heads, s.head_dim, s.values()};
  if (s.batch == 0 || s.seq == 0) {
    if (!args.accumulate) fill(queue, args.dsinks, 0);
    return;
  }
  const RowChunks chunks = kernel_scratch::sink_chunks(size);
  auto* const partials = static_cast<float*>(queue.scratch(kernel_scratch::attention_sinks(size)));
  with_type(args.out.dtype, [&](auto type) {
    using T = decltype(type);
    const SinkRows<T> a = {.out = args.out.as<const T>(),
                           .dout = args.dout.as<const T>(),
                           .sinks = s.sinks.as<const T>(),
                           .lse = args.lse.as<const float>(),
                           .partials = partials,
                           .rows_per_chunk = chunks.rows,
                           .seq = static_cast<int>(s.seq),
                           .heads = static_cast<int>(s.heads),
                           .dim = static_cast<int>(s.values()),
                           .chunks = static_cast<int>(chunks.count)};
    constexpr int kPack = kPackOf<T>;
    with_pack<kPack>(aligned({a.out, a.dout}) && a.dim % kPack == 0, [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      const int64_t groups = divide_up(s.heads, kSinkTeams<N>);
      launch(attention_sinks_kernel<T, N>,
             dim3(static_cast<unsigned>(s.batch * chunks.count * groups)), dim3(kBlock), 0,
             queue.stream(), a);
    });
  });
  combine(queue, partials, s.batch * chunks.count, s.heads, s.heads, args.dsinks.as<float>(),
          args.accumulate);
}

}  // namespace mtl::cuda
