// Mixture of experts: which tokens go to which expert, and how many each gets. All of this works on
// the logits of each token, E floats: little beside the rows (expert_rows.cu).
#include "runtime/device/cuda/expert_scores.h"

namespace mtl::cuda {

namespace {

struct Routing {
  explicit Routing(const ExpertRoutes& routes)
      : tokens(routes.weights.rows()),
        k(static_cast<int>(routes.weights.cols())),
        experts(static_cast<int>(routes.counts.numel())),
        weights(routes.weights.as<float>()),
        chosen(routes.experts.as<int32_t>()),
        rows(routes.rows.as<int32_t>()),
        assignments(routes.assignments.as<int32_t>()),
        counts(routes.counts.as<int32_t>()) {}
  int64_t tokens;
  int k, experts;
  float* weights;
  int32_t *chosen, *rows, *assignments, *counts;
};

// What the experts of a token are chosen by.
struct Ranks {
  const float* logits;
  const float* bias;
  bool sigmoids;  // of one group they have the order of their logits
  // A NaN is smaller than every number, so that k experts are chosen whatever the logits are.
  __device__ float operator()(int e) const {
    float rank = sigmoids ? expert_sigmoid(logits[e]) : logits[e];
    if (bias != nullptr) rank += bias[e];
    return rank != rank ? -INFINITY : rank;
  }
};

// Of values [first, end) the best, behind `before` in the order of value and then of index; -1
// before all.
template <typename Values>
__device__ inline int next_best(const Values& value_of, int first, int end, int before) {
  const float last = before >= 0 ? value_of(before) : 0;
  int best = -1;
  float largest = 0;
  for (int i = first; i < end; ++i) {
    const float own = value_of(i);
    if (before >= 0 && (own > last || (own == last && i <= before))) continue;
    if (best < 0 || own > largest) {
      best = i;
      largest = own;
    }
  }
  return best;
}

// The score of a group: the sum of its best experts'. It is made again whenever it is asked for,
// which takes no memory.
struct GroupScores {
  const Ranks& rank_of;
  int size, best;  // experts of a group, and how many of them are added
  bool probabilities;
  float largest;  // of all, for these
  __device__ float operator()(int group) const {
    const int first = group * size, end = first + size;
    float sum = 0;
    int expert = -1;
    for (int i = 0; i < best; ++i) {
      expert = next_best(rank_of, first, end, expert);
      const float rank = rank_of(expert);
      sum += probabilities ? expf(rank - largest) : rank;
    }
    return sum != sum ? -INFINITY : sum;
  }
};

// Which groups of experts a token takes its own from, a bit each.
__device__ inline uint64_t choose_groups(const Ranks& rank_of, const ExpertScores& scores,
                                         int experts) {
  if (scores.groups == 1) return 1;
  const bool probabilities = !scores.sigmoid && !scores.normalize;
  const float largest = probabilities ? rank_of(next_best(rank_of, 0, experts, -1)) : 0;
  const GroupScores score_of = {rank_of, experts / scores.groups, scores.group_best, probabilities,
                                largest};
  uint64_t taken = 0;
  int group = -1;
  for (int i = 0; i < scores.group_topk; ++i) {
    group = next_best(score_of, 0, scores.groups, group);
    taken |= uint64_t{1} << group;
  }
  return taken;
}

// The scores of the chosen.
__device__ inline void weigh(const float* logits, int experts, const ExpertScores& scores,
                             const int32_t* chosen, int k, float* weights) {
  float sum = 0;
  if (scores.sigmoid) {
    for (int j = 0; j < k; ++j) sum += weights[j] = expert_sigmoid(logits[chosen[j]]);
    sum = scores.normalize ? sum + kNormalizeFloor : 1;
  } else {
    // Those of the others cancel where weights add up to 1.
    const int all = scores.normalize ? k : experts;
    float largest = logits[scores.normalize ? chosen[0] : 0];
    for (int i = 1; i < all; ++i) {
      largest = fmaxf(largest, logits[scores.normalize ? chosen[i] : i]);
    }
    for (int i = 0; i < all; ++i) sum += expf(logits[scores.normalize ? chosen[i] : i] - largest);
    for (int j = 0; j < k; ++j) weights[j] = expf(logits[chosen[j]] - largest);
  }
  for (int j = 0; j < k; ++j) weights[j] = weights[j] / sum * scores.scale;
}

// A thread per token; in small blocks, so that more multiprocessors have some of them.
constexpr int kChoosing = 64;
__global__ void __launch_bounds__(kChoosing)
    choose_kernel(const float* all_logits, const float* bias, ExpertScores scores, Routing r) {
  const int64_t threads = int64_t{gridDim.x} * kChoosing;
  for (int64_t t = int64_t{blockIdx.x} * kChoosing + threadIdx.x; t < r.tokens; t += threads) {
    const float* logits = all_logits + t * r.experts;
    const Ranks rank_of = {logits, bias, bias != nullptr || (scores.sigmoid && scores.groups > 1)};
    const uint64_t groups = choose_groups(rank_of, scores, r.experts);
    const int size = r.experts / scores.groups;
    int32_t* chosen = r.chosen + t * r.k;
    for (int j = 0; j < r.k; ++j) {
      // Of those that come behind the one before, in the order of rank and then of index.
      int best = -1;
      for (int e = 0; e < r.experts; ++e) {
        if ((groups >> (e / size) & 1) == 0) continue;
        if (j > 0) {
          const float before = rank_of(chosen[j - 1]), own = rank_of(e);
          if (own > before || (own == before && e <= chosen[j - 1])) continue;
        }
        if (best < 0 || rank_of(e) > rank_of(best)) best = e;
      }
      chosen[j] = best;
    }
    for (int j = 1; j < r.k; ++j) {
      const int32_t one = chosen[j];
      int at = j;
      for (; at > 0 && chosen[at - 1] > one; --at) chosen[at] = chosen[at - 1];
      chosen[at] = one;
    }
    weigh(logits, r.experts, scores, chosen, r.k, r.weights + t * r.k);
  }
}

// The tokens are cut into chunks; a block has an expert's tokens of a chunk. With a block for each
// expert most multiprocessors would stand idle. Rows do not depend on how the tokens are cut.
struct TokenChunks {
  int64_t tokens;   // of a chunk
  int count;        // of them
  int32_t* counts;  // [chunk, expert]: how many of its tokens are the expert's
};

// The tokens of a block: [first, end).
struct TokenRange {
  int64_t first, end;
};
__device__ inline TokenRange tokens_of_block(const Routing& r, const TokenChunks& chunks) {
  const int64_t first = int64_t{blockIdx.y} * chunks.tokens;
  return {first, min(first + chunks.tokens, r.tokens)};
}

// The assignment of token t to expert e, -1 if there is none.
__device__ inline int64_t assignment_of(const Routing& r, int64_t t, int64_t end, int e) {
  if (t >= end) return -1;
  for (int j = 0; j < r.k; ++j) {
    if (r.chosen[t * r.k + j] == e) return t * r.k + j;
  }
  return -1;
}

// The sum over a block, on all its threads.
__device__ inline int32_t block_total(int32_t value) {
  __shared__ int32_t of_warp[kWarps];
  for (unsigned step = kWarp / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, step);
  }
  __syncthreads();  // some may still read the last sum
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  int32_t sum = 0;
  for (int warp = 0; warp < kWarps; ++warp) sum += of_warp[warp];
  return sum;
}

// A block counts its expert's tokens in its chunk.
__global__ void __launch_bounds__(kBlock) count_kernel(Routing r, TokenChunks chunks) {
  const int e = static_cast<int>(blockIdx.x);
  const TokenRange range = tokens_of_block(r, chunks);
  int32_t count = 0;
  for (int64_t t = range.first + threadIdx.x; t < range.end; t += kBlock) {
    if (assignment_of(r, t, range.end, e) >= 0) ++count;
  }
  count = block_total(count);
  if (threadIdx.x == 0) chunks.counts[int64_t{blockIdx.y} * r.experts + e] = count;
}

// And gives them rows behind those of the experts before it, in the order of the tokens.
__global__ void __launch_bounds__(kBlock) place_kernel(Routing r, TokenChunks chunks) {
  __shared__ int32_t of_warp[kWarps];
  const int e = static_cast<int>(blockIdx.x), chunk = static_cast<int>(blockIdx.y);
  const unsigned warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  int32_t before = 0, own = 0;  // rows; of the expert in all chunks
  for (int i = static_cast<int>(threadIdx.x); i < chunks.count * r.experts; i += kBlock) {
    const int expert = i % r.experts;
    const int32_t count = chunks.counts[i];
    if (expert < e || (expert == e && i / r.experts < chunk)) before += count;
    if (expert == e) own += count;
  }
  int32_t next = block_total(before);
  own = block_total(own);
  if (chunk == 0 && threadIdx.x == 0) r.counts[e] = own;
  const TokenRange range = tokens_of_block(r, chunks);
  for (int64_t first = range.first; first < range.end; first += kBlock) {
    const int64_t assignment = assignment_of(r, first + threadIdx.x, range.end, e);
    const unsigned votes = __ballot_sync(kAllLanes, assignment >= 0 ? 1 : 0);
    if (lane == 0) of_warp[warp] = __popc(votes);
    __syncthreads();
    int32_t row = next + __popc(votes & ((1u << lane) - 1));
    for (unsigned w = 0; w < kWarps; ++w) {
      if (w < warp) row += of_warp[w];
      next += of_warp[w];
    }
    if (assignment >= 0) {
      r.rows[assignment] = row;
      r.assignments[row] = static_cast<int32_t>(assignment);
    }
    __syncthreads();  // before the next turn writes of_warp
  }
}

template <typename T>
struct Backward {
  Routing routing;
  const float* logits;
  const float* dweights;
  T* dlogits;
  float* losses;
  int64_t seq, own;        // tokens of a sequence, and of it here
  const int32_t* counted;  // of all tokens of the sequences
  float aux_scale, z_scale, balanced;
  ExpertScores scores;
};

// A thread per token, behind its sequence's tokens per expert: so many whole numbers that every
// block counts them itself. With a block per sequence one multiprocessor would work, and of 128
// experts and 8,192 tokens for about half a millisecond.
template <typename T>
__global__ void __launch_bounds__(kBlock) route_backward_kernel(Backward<T> a) {
  MTL_DYNAMIC_SHARED(memory);
  auto* const load = reinterpret_cast<float*>(memory);
  auto* const counts = reinterpret_cast<int32_t*>(memory) + a.routing.experts;
  const Routing& r = a.routing;
  const auto parts = static_cast<unsigned>((a.own + kBlock - 1) / kBlock);  // of a sequence
  const int64_t sequence = blockIdx.x / parts, first = sequence * a.own;
  const int32_t* const counted = a.counted + sequence * a.seq * r.k;
  for (int e = static_cast<int>(threadIdx.x); e < r.experts; e += kBlock) counts[e] = 0;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < a.seq * r.k; i += kBlock) {
    atomicAdd(counts + counted[i], 1);  // whole numbers: any order is the same
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < r.experts; e += kBlock) {
    load[e] = static_cast<float>(counts[e]) / a.balanced;
  }
  __syncthreads();
  const int64_t own = int64_t{blockIdx.x % parts} * kBlock + threadIdx.x;
  if (own >= a.own) return;
  const int64_t t = first + own;
  const float* logits = a.logits + t * r.experts;
  float largest = logits[0];
  for (int e = 1; e < r.experts; ++e) largest = fmaxf(largest, logits[e]);
  const bool sigmoids = a.scores.sigmoid;
  float sum = 0, scores = kNormalizeFloor;
  for (int e = 0; e < r.experts; ++e) {
    sum += expf(logits[e] - largest);
    if (sigmoids) scores += expert_sigmoid(logits[e]);
  }
  float aux = 0;
  for (int e = 0; e < r.experts; ++e) {
    const float share =
        sigmoids ? expert_sigmoid(logits[e]) / scores : expf(logits[e] - largest) / sum;
    aux += share * load[e];
  }
  const float z = largest + logf(sum);
  a.losses[t] = aux;
  a.losses[r.tokens + t] = z * z;
  const float* weights = r.weights + t * r.k;
  const float* dweights = a.dweights + t * r.k;
  const int32_t* chosen = r.chosen + t * r.k;
  // Of what weights are divided by: the sum over the chosen, or for a softmax that over all.
  float mean = 0;
  for (int j = 0; j < r.k; ++j) mean += weights[j] * dweights[j];
  // Weights have the scale in them, and the sum is that of what they were before.
  const float of_chosen = a.scores.normalize ? mean / a.scores.scale : 0.0f;
  const float of_all = a.scores.normalize ? 0.0f : mean;
  int j = 0;  // experts ascend in `chosen` too
  for (int e = 0; e < r.experts; ++e) {
    const float probability = expf(logits[e] - largest) / sum;
    const float of_aux = a.aux_scale * (load[e] - aux), of_z = a.z_scale * 2.0f * z;
    float slope = 1, d = 0;
    if (sigmoids) {
      const float score = expert_sigmoid(logits[e]);
      slope = 1 - score;
      d = probability * of_z + score / scores * slope * of_aux;
    } else {
      d = probability * (of_aux + of_z - of_all);
    }
    if (j < r.k && chosen[j] == e) {
      d += weights[j] * slope * (dweights[j] - of_chosen);
      ++j;
    }
    a.dlogits[t * r.experts + e] = from_float<T>(d);
  }
}

__global__ void __launch_bounds__(kBlock)
    count_experts_kernel(const int32_t* counts, double* sums, int64_t experts) {
  for (int64_t e = threadIdx.x; e < experts; e += kBlock) sums[e] += counts[e];
}

struct Balance {
  const double* counts;
  float* bias;
  const float* factor;
  int64_t experts;
  float rate;
};

// A block per layer; every thread adds up the layer's counts: whole numbers, and few.
__global__ void __launch_bounds__(kBlock) balance_experts_kernel(Balance a) {
  const float factor = *a.factor;
  if (factor - factor != 0) return;  // infinite or none
  const double* counts = a.counts + blockIdx.x * a.experts;
  float* bias = a.bias + blockIdx.x * a.experts;
  double sum = 0;
  for (int64_t e = 0; e < a.experts; ++e) sum += counts[e];
  for (int64_t e = threadIdx.x; e < a.experts; e += kBlock) {
    const double own = counts[e] * static_cast<double>(a.experts);
    if (own < sum) bias[e] += a.rate;
    if (own > sum) bias[e] -= a.rate;
  }
}

}  // namespace

void route_experts(Queue& queue, const RouteExperts& args) {
  const Routing routing(args.routes);
  launch(choose_kernel, blocks_for(queue, routing.tokens, kChoosing), dim3(kChoosing), 0,
         queue.stream(), args.logits.as<const float>(), args.bias.as<const float>(), args.scores,
         routing);
  const RowChunks rows = kernel_scratch::routing_chunks(routing.tokens);
  const TokenChunks chunks = {rows.rows, static_cast<int>(rows.count),
                              static_cast<int32_t*>(queue.scratch(
                                  kernel_scratch::route_experts(routing.tokens, routing.experts)))};
  const dim3 blocks(static_cast<unsigned>(routing.experts), static_cast<unsigned>(rows.count));
  launch(count_kernel, blocks, dim3(kBlock), 0, queue.stream(), routing, chunks);
  launch(place_kernel, blocks, dim3(kBlock), 0, queue.stream(), routing, chunks);
}

void route_experts_backward(Queue& queue, const RouteExpertsBackward& args) {
  const Routing routing(args.routes);
  const Tensor& counted = args.sequence_experts ? args.sequence_experts : args.routes.experts;
  const int64_t sequences = counted.rows() / args.seq, own = routing.tokens / sequences;
  with_type(args.dlogits.dtype, [&](auto type) {
    using T = decltype(type);
    const Backward<T> backward = {
        routing,
        args.logits.as<const float>(),
        args.dweights.as<const float>(),
        args.dlogits.as<T>(),
        args.losses.as<float>(),
        args.seq,
        own,
        counted.as<const int32_t>(),
        args.aux_scale,
        args.z_scale,
        static_cast<float>(routing.k * args.seq) / static_cast<float>(routing.experts),
        args.scores};
    const int64_t blocks = sequences * divide_up(own, kBlock);
    launch(route_backward_kernel<T>, dim3(static_cast<unsigned>(blocks)), dim3(kBlock),
           static_cast<size_t>(routing.experts) * 2 * sizeof(float), queue.stream(), backward);
  });
}

void count_experts(Queue& queue, const CountExperts& args) {
  launch(count_experts_kernel, dim3(1), dim3(kBlock), 0, queue.stream(),
         args.counts.as<const int32_t>(), args.sums.as<double>(), args.counts.numel());
}

void balance_experts(Queue& queue, const BalanceExperts& args) {
  const Balance balance = {args.counts.as<const double>(), args.bias.as<float>(),
                           args.factor.as<const float>(), args.bias.cols(),
                           static_cast<float>(args.rate)};
  launch(balance_experts_kernel, dim3(static_cast<unsigned>(args.bias.rows())), dim3(kBlock), 0,
         queue.stream(), balance);
}

}  // namespace mtl::cuda
