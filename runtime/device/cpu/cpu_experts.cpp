// Mixture of experts: who goes where, and rows on their way there and back.
#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "runtime/device/cpu/cpu_device.h"

namespace mtl {

namespace {

constexpr float kNormalizeFloor = 1e-20f;  // ExpertScores

float sigmoid(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}

// What the experts of a token are chosen by. A NaN is smaller than every number, so that k experts
// are chosen whatever the logits are.
void rank_experts(const float* logits, const float* bias, int64_t experts,
                  const ExpertScores& scores, float* ranks) {
  // Of one group sigmoids have the order of their logits, and may be equal where these are not.
  const bool sigmoids = bias != nullptr || (scores.sigmoid && scores.groups > 1);
  for (int64_t e = 0; e < experts; ++e) {
    float rank = sigmoids ? sigmoid(logits[e]) : logits[e];
    if (bias != nullptr) rank += bias[e];
    ranks[e] = std::isnan(rank) ? -std::numeric_limits<float>::infinity() : rank;
  }
}

// Which groups of experts a token takes its own from, a bit each.
uint64_t choose_groups(const float* ranks, int64_t experts, const ExpertScores& scores) {
  if (scores.groups == 1) return 1;
  const int64_t size = experts / scores.groups;
  // Probabilities but for what all are divided by.
  const bool probabilities = !scores.sigmoid && !scores.normalize;
  const float largest = *std::max_element(ranks, ranks + experts);
  std::vector<float> sums, own;
  for (int64_t group = 0; group < scores.groups; ++group) {
    own.assign(ranks + group * size, ranks + (group + 1) * size);
    std::partial_sort(own.begin(), own.begin() + scores.group_best, own.end(), std::greater<>());
    float sum = 0;
    for (int i = 0; i < scores.group_best; ++i) {
      const float rank = own[static_cast<size_t>(i)];
      sum += probabilities ? std::exp(rank - largest) : rank;
    }
    sums.push_back(std::isnan(sum) ? -std::numeric_limits<float>::infinity() : sum);
  }
  uint64_t taken = 0;
  for (int i = 0; i < scores.group_topk; ++i) {
    size_t best = sums.size();
    for (size_t group = 0; group < sums.size(); ++group) {
      if ((taken >> group & 1) != 0) continue;
      if (best == sums.size() || sums[group] > sums[best]) best = group;
    }
    taken |= uint64_t{1} << best;
  }
  return taken;
}

// The k experts of one token, ascending; of `groups`, which have `size` each.
void choose(const float* ranks, int64_t experts, int64_t k, uint64_t groups, int64_t size,
            int32_t* chosen) {
  for (int64_t j = 0; j < k; ++j) {
    int64_t best = -1;
    for (int64_t e = 0; e < experts; ++e) {
      if ((groups >> (e / size) & 1) == 0) continue;
      if (std::find(chosen, chosen + j, static_cast<int32_t>(e)) != chosen + j) continue;
      if (best < 0 || ranks[e] > ranks[best]) best = e;
    }
    chosen[j] = static_cast<int32_t>(best);
  }
  std::sort(chosen, chosen + k);
}

// The scores of the chosen.
void weigh(const float* logits, int64_t experts, const ExpertScores& scores, const int32_t* chosen,
           int64_t k, float* weights) {
  float sum = 0;
  if (scores.sigmoid) {
    for (int64_t j = 0; j < k; ++j) sum += weights[j] = sigmoid(logits[chosen[j]]);
    sum += kNormalizeFloor;
  } else {
    // Those of the others cancel where weights add up to 1.
    const int64_t all = scores.normalize ? k : experts;
    const auto of = [&](int64_t i) { return logits[scores.normalize ? chosen[i] : i]; };
    float largest = of(0);
    for (int64_t i = 1; i < all; ++i) largest = std::max(largest, of(i));
    for (int64_t i = 0; i < all; ++i) sum += std::exp(of(i) - largest);
    for (int64_t j = 0; j < k; ++j) weights[j] = std::exp(logits[chosen[j]] - largest);
  }
  if (scores.sigmoid && !scores.normalize) sum = 1;
  for (int64_t j = 0; j < k; ++j) weights[j] = weights[j] / sum * scores.scale;
}

// What the ops that go over tokens share.
struct Routes {
  explicit Routes(const ExpertRoutes& routes)
      : tokens(routes.weights.rows()),
        k(routes.weights.cols()),
        experts(routes.counts.numel()),
        weights(routes.weights.as<float>()),
        chosen(routes.experts.as<int32_t>()) {
    assert(k >= 1 && k <= experts);
    assert(routes.experts.numel() == tokens * k && routes.rows.numel() == tokens * k);
    assert(routes.assignments.numel() == tokens * k);
  }
  int64_t tokens, k, experts;
  float* weights;
  int32_t* chosen;
};

// The gradient of one token's logits. `load[e]`: E n_e / (k S) of its sequence.
void logits_backward(const float* logits, const Routes& routes, int64_t token,
                     const float* dweights, const float* load, const RouteExpertsBackward& args,
                     float* dlogits) {
  const int64_t experts = routes.experts, k = routes.k;
  const bool sigmoids = args.scores.sigmoid;
  const float* weights = routes.weights + token * k;
  const int32_t* chosen = routes.chosen + token * k;
  // The softmax over all, which z asks for, and the balance unless scores are sigmoids.
  float largest = logits[0];
  for (int64_t e = 1; e < experts; ++e) largest = std::max(largest, logits[e]);
  float sum = 0, scores = kNormalizeFloor, aux = 0;
  for (int64_t e = 0; e < experts; ++e) sum += dlogits[e] = std::exp(logits[e] - largest);
  for (int64_t e = 0; e < experts && sigmoids; ++e) scores += sigmoid(logits[e]);
  for (int64_t e = 0; e < experts; ++e) {
    dlogits[e] /= sum;
    aux += (sigmoids ? sigmoid(logits[e]) / scores : dlogits[e]) * load[e];
  }
  const float z = largest + std::log(sum);
  float* losses = args.losses.as<float>();
  losses[token] = aux;
  losses[routes.tokens + token] = z * z;
  // Of what weights are divided by: the sum over the chosen, or for a softmax that over all.
  float mean = 0;
  for (int64_t j = 0; j < k; ++j) mean += weights[j] * dweights[token * k + j];
  // Weights have the scale in them, and the sum is that of what they were before.
  const float of_chosen = args.scores.normalize ? mean / args.scores.scale : 0.0f;
  const float of_all = args.scores.normalize ? 0.0f : mean;
  for (int64_t e = 0; e < experts; ++e) {
    const float of_aux = args.aux_scale * (load[e] - aux), of_z = args.z_scale * 2 * z;
    if (sigmoids) {
      const float score = sigmoid(logits[e]);
      dlogits[e] = dlogits[e] * of_z + score / scores * (1 - score) * of_aux;
    } else {
      dlogits[e] *= of_aux + of_z - of_all;
    }
  }
  for (int64_t j = 0; j < k; ++j) {
    const float slope = sigmoids ? 1 - sigmoid(logits[chosen[j]]) : 1.0f;
    dlogits[chosen[j]] += weights[j] * slope * (dweights[token * k + j] - of_chosen);
  }
}

}  // namespace

void CpuDevice::route_experts(const RouteExperts& args) {
  const Routes routes(args.routes);
  assert(args.logits.dtype == DType::f32 && args.logits.cols() == routes.experts &&
         args.logits.rows() == routes.tokens);
  assert(!args.bias || (args.scores.sigmoid && args.bias.dtype == DType::f32 &&
                        args.bias.numel() == routes.experts));
  const auto* logits = args.logits.as<const float>();
  const auto* bias = args.bias.as<const float>();
  const ExpertScores& scores = args.scores;
  assert(scores.groups >= 1 && scores.groups <= kMostExpertGroups &&
         routes.experts % scores.groups == 0);
  assert(scores.groups == 1 || routes.k <= routes.experts / scores.groups * scores.group_topk);
  assert(scores.group_best >= 1 && scores.group_best <= routes.experts / scores.groups);
  split_rows(routes.tokens, routes.experts * routes.k, [&](int64_t begin, int64_t end) {
    std::vector<float> ranks(static_cast<size_t>(routes.experts));
    for (int64_t t = begin; t < end; ++t) {
      const float* own = logits + t * routes.experts;
      int32_t* chosen = routes.chosen + t * routes.k;
      rank_experts(own, bias, routes.experts, scores, ranks.data());
      const uint64_t groups = choose_groups(ranks.data(), routes.experts, scores);
      choose(ranks.data(), routes.experts, routes.k, groups, routes.experts / scores.groups,
             chosen);
      weigh(own, routes.experts, scores, chosen, routes.k, routes.weights + t * routes.k);
    }
  });
  // Sorted by counting: few numbers, on one thread.
  auto* counts = args.routes.counts.as<int32_t>();
  const int64_t assignments = routes.tokens * routes.k;
  std::fill_n(counts, routes.experts, 0);
  for (int64_t a = 0; a < assignments; ++a) ++counts[routes.chosen[a]];
  std::vector<int32_t> next(static_cast<size_t>(routes.experts), 0);
  for (size_t e = 1; e < next.size(); ++e) next[e] = next[e - 1] + counts[e - 1];
  auto* rows = args.routes.rows.as<int32_t>();
  auto* by_row = args.routes.assignments.as<int32_t>();
  for (int64_t a = 0; a < assignments; ++a) {
    const int32_t row = next[static_cast<size_t>(routes.chosen[a])]++;
    rows[a] = row;
    by_row[row] = static_cast<int32_t>(a);
  }
}

void CpuDevice::route_experts_backward(const RouteExpertsBackward& args) {
  const Routes routes(args.routes);
  const int64_t experts = routes.experts;
  assert(args.logits.dtype == DType::f32 && args.logits.numel() == routes.tokens * experts);
  assert(args.dweights.dtype == DType::f32 && args.dweights.numel() == routes.tokens * routes.k);
  assert(args.dlogits.numel() == args.logits.numel());
  assert(args.losses.dtype == DType::f32 && args.losses.numel() == 2 * routes.tokens);
  const Tensor& whole = args.sequence_experts;
  const int64_t all = whole ? whole.rows() : routes.tokens;  // tokens of the sequences
  assert(args.seq > 0 && all % args.seq == 0 && routes.tokens % (all / args.seq) == 0);
  assert(!whole || whole.cols() == routes.k);
  const int64_t own = routes.tokens / (all / args.seq);  // tokens here of a sequence
  const auto* logits = args.logits.as<const float>();
  const auto* dweights = args.dweights.as<const float>();
  const auto from_f32 = typed(args.dlogits.dtype).from_f32;
  const int64_t row_bytes = experts * bytes_of(args.dlogits.dtype);
  const auto balanced = static_cast<float>(routes.k * args.seq) / static_cast<float>(experts);
  split(routes.tokens / own, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> load(static_cast<size_t>(experts)), row(static_cast<size_t>(experts));
    std::vector<int64_t> counts(static_cast<size_t>(experts));
    for (int64_t first = begin * own; first < end * own; first += own) {
      const int32_t* chosen =
          (whole ? whole.as<const int32_t>() : routes.chosen) + first / own * args.seq * routes.k;
      std::fill(counts.begin(), counts.end(), 0);
      for (int64_t a = 0; a < args.seq * routes.k; ++a) ++counts[static_cast<size_t>(chosen[a])];
      for (size_t e = 0; e < load.size(); ++e) load[e] = static_cast<float>(counts[e]) / balanced;
      for (int64_t t = first; t < first + own; ++t) {
        logits_backward(logits + t * experts, routes, t, dweights, load.data(), args, row.data());
        from_f32(row.data(), args.dlogits.as<char>() + t * row_bytes, experts);
      }
    }
  });
}

void CpuDevice::gather_rows(const GatherRows& args) {
  const int64_t cols = args.from.cols(), row_bytes = cols * bytes_of(args.from.dtype);
  assert(args.to.dtype == args.from.dtype && args.to.cols() == cols);
  assert(args.index.dtype == DType::i32 && args.to.rows() == args.index.numel());
  const auto* index = args.index.as<const int32_t>();
  const auto* weights = args.weights.as<const float>();
  const auto scale_row = typed(args.from.dtype).scale_row;
  split_rows(args.index.numel(), cols, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = index[i] / args.divide;
      assert(row >= 0 && row < args.from.rows());
      const char* from = args.from.as<const char>() + row * row_bytes;
      char* to = args.to.as<char>() + i * row_bytes;
      if (weights) {
        scale_row(from, weights[index[i]], to, cols);
      } else {
        std::memcpy(to, from, static_cast<size_t>(row_bytes));
      }
    }
  });
}

void CpuDevice::combine_rows(const CombineRows& args) {
  const int64_t cols = args.to.cols(), count = args.rows.cols();
  assert(args.from.dtype == args.to.dtype && args.from.cols() == cols);
  assert(args.rows.dtype == DType::i32 && args.rows.rows() == args.to.rows());
  const auto* rows = args.rows.as<const int32_t>();
  const auto* weights = args.weights.as<const float>();
  const int64_t row_bytes = cols * bytes_of(args.to.dtype);
  const auto combine_row = typed(args.to.dtype).combine_row;
  split_rows(args.to.rows(), count * cols, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      combine_row({.from = args.from.data,
                   .rows = rows + t * count,
                   .weights = weights ? weights + t * count : nullptr,
                   .count = count,
                   .to = args.to.as<char>() + t * row_bytes,
                   .cols = cols});
    }
  });
}

void CpuDevice::add_shared(const AddShared& args) {
  const int64_t cols = args.from.cols(), row_bytes = cols * bytes_of(args.from.dtype);
  assert(args.to.dtype == args.from.dtype && args.to.numel() == args.from.numel());
  assert(!args.gate || (args.gate.dtype == DType::f32 && args.gate.numel() == args.from.rows()));
  const auto* gate = args.gate.as<const float>();
  const auto& kernels = typed(args.from.dtype);
  split_rows(args.from.rows(), cols, [&](int64_t begin, int64_t end) {
    std::vector<float> from(static_cast<size_t>(cols)), to(static_cast<size_t>(cols));
    for (int64_t t = begin; t < end; ++t) {
      const char* x = args.from.as<const char>() + t * row_bytes;
      char* y = args.to.as<char>() + t * row_bytes;
      if (gate == nullptr) {
        kernels.add(x, y, cols);
        continue;
      }
      const float open = sigmoid(gate[t]);
      kernels.to_f32(x, from.data(), cols);
      kernels.to_f32(y, to.data(), cols);
      for (size_t i = 0; i < to.size(); ++i) to[i] += open * from[i];
      kernels.from_f32(to.data(), y, cols);
    }
  });
}

void CpuDevice::add_shared_backward(const AddSharedBackward& args) {
  const int64_t rows = args.x.rows(), cols = args.x.cols();
  const int64_t row_bytes = cols * bytes_of(args.x.dtype);
  const int64_t gate_bytes = bytes_of(args.dgate.dtype);
  assert(args.dy.dtype == args.x.dtype && args.dy.numel() == args.x.numel());
  assert(args.gate.dtype == DType::f32 && args.gate.numel() == rows && args.dgate.numel() == rows);
  const auto* gate = args.gate.as<const float>();
  const auto& kernels = typed(args.x.dtype);
  const auto from_f32 = typed(args.dgate.dtype).from_f32;
  split_rows(rows, cols, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      char* x = args.x.as<char>() + t * row_bytes;
      const float open = sigmoid(gate[t]);
      const float dot =
          kernels.weigh_row_backward(x, args.dy.as<char>() + t * row_bytes, open, cols);
      const float dgate = dot * open * (1 - open);
      from_f32(&dgate, args.dgate.as<char>() + t * gate_bytes, 1);
      kernels.scale_row(x, open, x, cols);
    }
  });
}

void CpuDevice::add_row_products(const AddRowProducts& args) {
  const int64_t rows = args.index.numel(), cols = args.vector.numel();
  assert(args.vector.dtype == args.rows.dtype && args.rows.numel() == rows * cols);
  assert(args.index.dtype == DType::i32 && args.sums.dtype == DType::f32);
  const int64_t row_bytes = cols * bytes_of(args.rows.dtype);
  const auto* index = args.index.as<const int32_t>();
  auto* sums = args.sums.as<float>();
  const auto row_product = typed(args.rows.dtype).row_product;
  split_rows(rows, cols, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      assert(index[i] >= 0 && index[i] < args.sums.numel());
      sums[index[i]] +=
          row_product(args.rows.as<const char>() + i * row_bytes, args.vector.data, cols);
    }
  });
}

void CpuDevice::count_experts(const CountExperts& args) {
  assert(args.counts.dtype == DType::i32 && args.sums.dtype == DType::f64 &&
         args.sums.numel() == args.counts.numel());
  const auto* counts = args.counts.as<const int32_t>();
  auto* sums = args.sums.as<double>();
  for (int64_t e = 0; e < args.counts.numel(); ++e) sums[e] += counts[e];
}

void CpuDevice::balance_experts(const BalanceExperts& args) {
  assert(args.counts.dtype == DType::f64 && args.bias.dtype == DType::f32 &&
         args.bias.numel() == args.counts.numel());
  if (!std::isfinite(*args.factor.as<const float>())) return;
  const int64_t experts = args.bias.cols();
  const auto rate = static_cast<float>(args.rate);
  for (int64_t row = 0; row < args.bias.rows(); ++row) {
    const double* counts = args.counts.as<const double>() + row * experts;
    float* bias = args.bias.as<float>() + row * experts;
    double sum = 0;
    for (int64_t e = 0; e < experts; ++e) sum += counts[e];
    for (int64_t e = 0; e < experts; ++e) {
      // Whole numbers on both sides: what is equal is equal.
      const double own = counts[e] * static_cast<double>(experts);
      if (own < sum) bias[e] += rate;
      if (own > sum) bias[e] -= rate;
    }
  }
}

}  // namespace mtl
