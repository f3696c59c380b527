// Mixture of experts: routing against a search by sorting, its gradient against finite differences
// of the losses in double precision, and the biases that balance the experts.
#include <algorithm>
#include <limits>
#include <numeric>

#include "runtime/device/routed_tokens.h"

namespace mtl::test {

namespace {

const ExpertsShape kExpertsShapes[] = {{1, 2, 2, 1},     {6, 4, 2, 3},    {40, 8, 2, 40},
                                       {300, 3, 2, 100}, {64, 16, 4, 8},  {515, 60, 6, 103},
                                       {33, 5, 5, 11},   {12, 128, 3, 4}, {1100, 4, 2, 550}};

const Scoring kScorings[] = {{{}},
                             {{.normalize = false}},
                             {{.sigmoid = true}},
                             {{.sigmoid = true, .normalize = false}},
                             {{.sigmoid = true}, true},
                             {{.scale = 2.5f}},
                             {{.normalize = false, .scale = 0.75f}},
                             {{.sigmoid = true, .scale = 2.5f}, true},
                             {{.sigmoid = true, .normalize = false, .scale = 16}}};

// Some of them with groups of experts, where a shape has them; of few tokens, for each is searched.
std::vector<Scoring> in_groups(const ExpertsShape& shape) {
  std::vector<Scoring> all;
  if (shape.n * shape.experts > 1600) return all;
  for (const int groups : {2, 4, 64}) {
    for (const int taken : {1, 2, 3}) {
      const int64_t size = shape.experts / groups;
      if (shape.experts % groups != 0 || taken > groups || taken > shape.k) continue;
      if (shape.k > taken * size) continue;
      for (const Scoring& scoring : {kScorings[0], kScorings[1], kScorings[2], kScorings[7]}) {
        all.push_back(scoring);
        all.back().scores.groups = groups;
        all.back().scores.group_topk = taken;
        // As Megatron-LM has it; of DeepSeek-V2 the best one alone; of all.
        all.back().scores.group_best = static_cast<int>(shape.k) / taken;
        if (scoring.biased) all.back().scores.group_best = 1;
        if (!scoring.scores.normalize) all.back().scores.group_best = static_cast<int>(size);
      }
    }
  }
  return all;
}

// The best groups of a token, in the order of their scores.
std::vector<int64_t> best_groups(const Routed& r, int64_t t) {
  const ExpertScores& scores = r.scoring.scores;
  const int64_t size = r.shape.experts / scores.groups;
  std::vector<double> sums;
  for (int64_t group = 0; group < scores.groups; ++group) {
    std::vector<double> ranks;
    for (int64_t e = group * size; e < (group + 1) * size; ++e) {
      ranks.push_back(r.rank_in_group(t, e));
    }
    std::sort(ranks.rbegin(), ranks.rend());
    sums.push_back(std::accumulate(ranks.begin(), ranks.begin() + scores.group_best, 0.0));
  }
  std::vector<int64_t> order(sums.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return sums[static_cast<size_t>(a)] > sums[static_cast<size_t>(b)];
  });
  order.resize(static_cast<size_t>(scores.group_topk));
  return order;
}

// The k experts of a token by a stable sort of all, ascending.
std::vector<int64_t> best_experts(const Routed& r, int64_t t) {
  std::vector<int64_t> order(static_cast<size_t>(r.shape.experts));
  std::iota(order.begin(), order.end(), 0);
  if (r.scoring.scores.groups > 1) {
    const std::vector<int64_t> groups = best_groups(r, t);
    const int64_t size = r.shape.experts / r.scoring.scores.groups;
    std::erase_if(order, [&](int64_t e) {
      return std::find(groups.begin(), groups.end(), e / size) == groups.end();
    });
  }
  std::vector<double> ranks;
  for (int64_t e = 0; e < r.shape.experts; ++e) ranks.push_back(r.rank(t, e));
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return ranks[static_cast<size_t>(a)] > ranks[static_cast<size_t>(b)];
  });
  order.resize(static_cast<size_t>(r.shape.k));
  std::sort(order.begin(), order.end());
  return order;
}

// Who is chosen, and where the rows lie; for any logits.
void check_places(const Routed& r) {
  const int64_t k = r.shape.k;
  std::vector<std::vector<int64_t>> assignments_of(static_cast<size_t>(r.shape.experts));
  int64_t wrong = 0;
  for (int64_t t = 0; t < r.shape.n; ++t) {
    const std::vector<int64_t> best = best_experts(r, t);
    for (int64_t j = 0; j < k; ++j) {
      const int64_t e = best[static_cast<size_t>(j)];
      assignments_of[static_cast<size_t>(e)].push_back(t * k + j);
      wrong += r.experts[t * k + j] != static_cast<double>(e);
    }
  }
  std::vector<int64_t> expected_assignments;
  for (int64_t e = 0; e < r.shape.experts; ++e) {
    const std::vector<int64_t>& own = assignments_of[static_cast<size_t>(e)];
    CHECK(r.counts[e] == static_cast<double>(own.size()));
    expected_assignments.insert(expected_assignments.end(), own.begin(), own.end());
  }
  CHECK(wrong == 0);
  for (int64_t row = 0; row < r.shape.n * k; ++row) {
    const int64_t a = expected_assignments[static_cast<size_t>(row)];
    wrong += r.assignments[row] != static_cast<double>(a);
    wrong += r.rows[a] != static_cast<double>(row);
  }
  CHECK(wrong == 0);
}

// What route_experts_backward is the gradient of, for the experts that were chosen:
// sum over tokens of dweights . weights + aux_scale * aux + z_scale * z.
struct Losses {
  double total = 0;
  std::vector<double> aux, z;  // by token
};
Losses losses_of(const Routed& r, const Held& dweights, double aux_scale, double z_scale) {
  const ExpertsShape& s = r.shape;
  Losses losses;
  for (int64_t t = 0; t < s.n; ++t) {
    double all = 0;
    for (int64_t e = 0; e < s.experts; ++e) all += std::exp(r.logit(t, e));
    for (int64_t j = 0; j < s.k; ++j) losses.total += dweights[t * s.k + j] * r.weight(t, j);
    const double scores = r.sum_of_scores(t);
    const int64_t first = t / s.seq * s.seq;
    double aux = 0;
    for (int64_t e = 0; e < s.experts; ++e) {
      double tokens = 0;
      for (int64_t a = first * s.k; a < (first + s.seq) * s.k; ++a) {
        tokens += r.experts[a] == static_cast<double>(e);
      }
      aux += r.score(t, e) / scores * tokens * static_cast<double>(s.experts) /
             static_cast<double>(s.k * s.seq);
    }
    losses.aux.push_back(aux);
    losses.z.push_back(std::pow(std::log(all), 2));
    losses.total += aux_scale * losses.aux.back() + z_scale * losses.z.back();
  }
  return losses;
}

}  // namespace

TEST_CASE("route_experts against a search by sorting") {
  for_each_device([](Device& device) {
    std::mt19937 random(1);
    std::vector<ExpertsShape> shapes(std::begin(kExpertsShapes), std::end(kExpertsShapes));
    // More than a GPU's block places; the last one has a single token.
    shapes.push_back({2049, 5, 2, 2049});
    for (const ExpertsShape& shape : shapes) {
      std::vector<Scoring> scorings = in_groups(shape);
      scorings.insert(scorings.end(), std::begin(kScorings), std::end(kScorings));
      for (const Scoring& scoring : scorings) {
        INFO(shape.n << " tokens, " << shape.k << " of " << shape.experts << ", sigmoid "
                     << scoring.scores.sigmoid << ", normalize " << scoring.scores.normalize
                     << ", bias " << scoring.biased << ", " << scoring.scores.group_topk << " of "
                     << scoring.scores.groups << " groups");
        Routed r(shape, scoring);
        r.logits.randomize(random, 2);
        r.bias.randomize(random);
        r.route(device);
        check_places(r);
        std::vector<double> weights;
        for (int64_t t = 0; t < shape.n; ++t) {
          for (int64_t j = 0; j < shape.k; ++j) weights.push_back(r.weight(t, j));
        }
        check_close(r.weights, weights, 1e-6 * std::max(1.0f, scoring.scores.scale), "weights");
      }
    }
  });
}

TEST_CASE(
    "route_experts: the smaller index wins a tie, and NaN and infinities choose experts too") {
  for_each_device([](Device& device) {
    std::mt19937 random(2);
    Routed ties({50, 6, 3, 50});
    ties.logits.randomize_ids(random, 0, 3);
    ties.route(device);
    check_places(ties);
    const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
    Routed odd({4, 4, 2, 1});
    const double values[] = {nan, nan,       nan, nan, 1,         nan,       nan, nan,
                             2,   -infinity, 1,   nan, -infinity, -infinity, nan, -infinity};
    for (int64_t i = 0; i < 16; ++i) odd.logits.set(i, values[i]);
    odd.route(device);
    check_places(odd);
    // Groups without a number, with infinities, and all alike.
    for (const Scoring& scoring : in_groups({4, 8, 2, 1})) {
      INFO(scoring.scores.group_topk << " of " << scoring.scores.groups << " groups, sigmoid "
                                     << scoring.scores.sigmoid << ", normalize "
                                     << scoring.scores.normalize << ", bias " << scoring.biased);
      Routed groups({6, 8, 2, 1}, scoring);
      groups.logits.randomize_ids(random, 0, 2);
      for (int64_t e = 0; e < 8; ++e) {
        groups.bias.set(e, 0);
        groups.logits.set(e, nan);
        groups.logits.set(8 + e, e < 4 ? nan : -infinity);
        groups.logits.set(16 + e, e == 5 ? 1 : nan);
        groups.logits.set(24 + e, 1);
      }
      groups.route(device);
      int64_t wrong = 0;
      for (int64_t t = 0; t < 6; ++t) {
        const int64_t a = groups.expert(t, 0), b = groups.expert(t, 1);
        wrong += a < 0 || b <= a || b >= 8;
        wrong += scoring.scores.group_topk == 1 &&
                 a * scoring.scores.groups / 8 != b * scoring.scores.groups / 8;
      }
      CHECK(wrong == 0);
      CHECK(groups.expert(3, 0) == 0);  // the first of what is all alike
    }
  });
}

namespace {

// Weights of the two losses, with every way to score.
struct WeighedLosses {
  double aux = 0, z = 0;
  Scoring scoring;
};
std::vector<WeighedLosses> weighed_losses() {
  std::vector<WeighedLosses> all;
  for (const Scoring& scoring : kScorings) {
    for (const auto& [aux, z] : {std::pair{0.0, 0.0}, {0.3, 0.0}, {0.0, 0.2}, {0.5, 0.1}}) {
      all.push_back({aux, z, scoring});
    }
  }
  return all;
}

}  // namespace

TEST_CASE("route_experts_backward is the finite difference of what it belongs to") {
  for_each_device([](Device& device) {
    std::mt19937 random(3);
    for (const ExpertsShape& shape :
         {ExpertsShape{6, 4, 2, 3}, ExpertsShape{10, 7, 3, 5}, ExpertsShape{4, 3, 3, 2}}) {
      for (const WeighedLosses& losses_of_router : weighed_losses()) {
        const double aux = losses_of_router.aux, z = losses_of_router.z;
        const Scoring& scoring = losses_of_router.scoring;
        INFO(shape.n << " tokens, " << shape.k << " of " << shape.experts << ", aux " << aux
                     << ", z " << z << ", sigmoid " << scoring.scores.sigmoid << ", normalize "
                     << scoring.scores.normalize);
        Routed r(shape, scoring);
        Held dweights(DType::f32, {shape.n, shape.k}), losses(DType::f32, {2, shape.n});
        Held dlogits(DType::f32, {shape.n, shape.experts});
        r.logits.randomize(random);
        r.bias.randomize(random);
        dweights.randomize(random);
        r.route(device);
        device.route_experts_backward({.logits = r.logits.view,
                                       .scores = scoring.scores,
                                       .routes = r.routes(),
                                       .dweights = dweights.view,
                                       .dlogits = dlogits.view,
                                       .seq = shape.seq,
                                       .aux_scale = static_cast<float>(aux),
                                       .z_scale = static_cast<float>(z),
                                       .losses = losses.view});
        const Losses expected = losses_of(r, dweights, aux, z);
        std::vector<double> both = expected.aux;
        both.insert(both.end(), expected.z.begin(), expected.z.end());
        check_close(losses, both, 2e-5, "losses");
        std::vector<double> differences;
        for (int64_t i = 0; i < r.logits.size(); ++i) {
          const double at = r.logits[i];
          r.logits.set(i, at + 0x1p-8);
          const double up = losses_of(r, dweights, aux, z).total;
          r.logits.set(i, at - 0x1p-8);
          const double down = losses_of(r, dweights, aux, z).total;
          r.logits.set(i, at);
          differences.push_back((up - down) * 0x1p7);
        }
        // Third derivatives below 4 times h^2 / 6; logits in f32 are off by 2^-24 of h.
        check_close(dlogits, differences, 3e-5 * std::max(1.0f, scoring.scores.scale), "dlogits");
      }
    }
  });
}

TEST_CASE("route_experts_backward in every type and of many tokens") {
  for_each_device([](Device& device) {
    std::mt19937 random(4);
    for (const ExpertsShape& shape : kExpertsShapes) {
      for (const DType type : kComputeTypes) {
        INFO(shape.n << " tokens, " << shape.k << " of " << shape.experts << " type "
                     << safetensors_name(type));
        Routed r(shape);
        Held dweights(DType::f32, {shape.n, shape.k}), losses(DType::f32, {2, shape.n});
        Held dlogits(type, {shape.n, shape.experts});
        r.logits.randomize(random, 1.5);
        dweights.randomize(random);
        r.route(device);
        device.route_experts_backward({.logits = r.logits.view,
                                       .routes = r.routes(),
                                       .dweights = dweights.view,
                                       .dlogits = dlogits.view,
                                       .seq = shape.seq,
                                       .aux_scale = 0.25f,
                                       .z_scale = 0.125f,
                                       .losses = losses.view});
        const std::vector<double> weights = r.weights.values();
        const Losses expected = losses_of(r, dweights, 0.25, 0.125);
        std::vector<double> gradient;
        for (int64_t t = 0; t < shape.n; ++t) {
          double all = 0, mean = 0;
          for (int64_t e = 0; e < shape.experts; ++e) all += std::exp(r.logit(t, e));
          for (int64_t j = t * shape.k; j < (t + 1) * shape.k; ++j)
            mean += weights[static_cast<size_t>(j)] * dweights[j];
          for (int64_t e = 0; e < shape.experts; ++e) {
            double load = 0, own = 0;
            for (int64_t a = t / shape.seq * shape.seq * shape.k;
                 a < (t / shape.seq + 1) * shape.seq * shape.k; ++a) {
              load += r.experts[a] == static_cast<double>(e);
            }
            load *= static_cast<double>(shape.experts) / static_cast<double>(shape.k * shape.seq);
            for (int64_t j = t * shape.k; j < (t + 1) * shape.k; ++j) {
              if (r.experts[j] == static_cast<double>(e)) {
                own = weights[static_cast<size_t>(j)] * (dweights[j] - mean);
              }
            }
            gradient.push_back(own + std::exp(r.logit(t, e)) / all *
                                         (0.25 * (load - expected.aux[static_cast<size_t>(t)]) +
                                          0.25 * std::log(all)));
          }
        }
        check_close(dlogits, gradient, 2e-5, "dlogits");
      }
    }
  });
}

TEST_CASE("biases of experts follow the tokens that they got, and stay where no update is made") {
  for_each_device([](Device& device) {
    Held counts(DType::i32, {4}), sums(DType::f64, {2, 4}), bias(DType::f32, {2, 4});
    Held factor(DType::f32, {1});
    const int32_t tokens[] = {7, 0, 5, 4};
    for (int64_t i = 0; i < 4; ++i) counts.set(i, tokens[i]);
    for (int64_t i = 0; i < 8; ++i) sums.set(i, i < 4 ? 0x1p40 : 3);
    for (int64_t i = 0; i < 8; ++i) bias.set(i, 0.25 * static_cast<double>(i));
    // Of the first layer, in two passes.
    const CountExperts count = {.counts = counts.view, .sums = sums.view.slice(0, 4)};
    device.count_experts(count);
    device.count_experts(count);
    for (int64_t i = 0; i < 4; ++i) CHECK(sums[i] == 0x1p40 + 2 * tokens[i]);
    const std::vector<double> before = bias.values();
    for (const double no_update : {std::nan(""), std::numeric_limits<double>::infinity()}) {
      factor.set(0, no_update);
      device.balance_experts(
          {.counts = sums.view, .bias = bias.view, .rate = 0.125, .factor = factor.view});
      CHECK(bias.values() == before);
    }
    factor.set(0, 0.5);
    device.balance_experts(
        {.counts = sums.view, .bias = bias.view, .rate = 0.125, .factor = factor.view});
    // The mean is 2^40 + 8: the last one has it. In the second layer all have the mean.
    CHECK(bias.values() ==
          std::vector<double>{0 - 0.125, 0.25 + 0.125, 0.5 - 0.125, 0.75, 1, 1.25, 1.5, 1.75});
  });
}

TEST_CASE("route_experts_backward of shares of sequences is that of whole ones") {
  for_each_device([](Device& device) {
    std::mt19937 random(9);
    const int64_t sequences = 3, seq = 280, parts = 2, share = seq / parts;
    const ExpertsShape shape = {sequences * seq, 5, 2, seq};
    const ExpertsShape of_share = {sequences * share, 5, 2, seq};
    Routed whole(shape);
    Held dweights(DType::f32, {shape.n, shape.k}), losses(DType::f32, {2, shape.n});
    Held dlogits(DType::f32, {shape.n, shape.experts});
    whole.logits.randomize(random);
    dweights.randomize(random);
    whole.route(device);
    const auto backward = [&](Routed& r, const Held& weights, Held& gradient, Held& made,
                              Tensor experts) {
      device.route_experts_backward({.logits = r.logits.view,
                                     .routes = r.routes(),
                                     .dweights = weights.view,
                                     .dlogits = gradient.view,
                                     .seq = seq,
                                     .sequence_experts = experts,
                                     .aux_scale = 0.5f,
                                     .z_scale = 0.25f,
                                     .losses = made.view});
    };
    backward(whole, dweights, dlogits, losses, {});
    for (int64_t part = 0; part < parts; ++part) {
      Routed r(of_share);
      Held own_dweights(DType::f32, {of_share.n, shape.k}), own_losses(DType::f32, {2, of_share.n});
      Held own_dlogits(DType::f32, {of_share.n, shape.experts});
      const auto row_of = [&](int64_t t) { return t / share * seq + part * share + t % share; };
      for (int64_t t = 0; t < of_share.n; ++t) {
        for (int64_t e = 0; e < shape.experts; ++e) {
          r.logits.set(t * shape.experts + e, whole.logits[row_of(t) * shape.experts + e]);
        }
        for (int64_t j = 0; j < shape.k; ++j) {
          own_dweights.set(t * shape.k + j, dweights[row_of(t) * shape.k + j]);
        }
      }
      r.route(device);
      backward(r, own_dweights, own_dlogits, own_losses, whole.experts.view);
      int64_t wrong = 0;
      for (int64_t t = 0; t < of_share.n; ++t) {
        for (int64_t e = 0; e < shape.experts; ++e) {
          wrong += own_dlogits[t * shape.experts + e] != dlogits[row_of(t) * shape.experts + e];
        }
        for (const int64_t i : {0, 1}) {
          wrong += own_losses[i * of_share.n + t] != losses[i * shape.n + row_of(t)];
        }
      }
      CHECK(wrong == 0);
    }
  });
}

TEST_CASE("experts: results do not depend on threads") {
  const ExpertsShape shape = {700, 9, 3, 100};
  const auto bytes = [&](int threads) {
    CpuDevice device(threads, cpu_isa());
    std::mt19937 random(6);
    Routed r(shape);
    r.logits.randomize(random);
    r.route(device);
    Held dweights(DType::f32, {shape.n, shape.k}), losses(DType::f32, {2, shape.n});
    Held dlogits(DType::bf16, {shape.n, shape.experts});
    dweights.randomize(random);
    device.route_experts_backward({.logits = r.logits.view,
                                   .routes = r.routes(),
                                   .dweights = dweights.view,
                                   .dlogits = dlogits.view,
                                   .seq = shape.seq,
                                   .aux_scale = 1,
                                   .z_scale = 1,
                                   .losses = losses.view});
    return std::vector{r.assignments.bytes(), r.weights.bytes(), dlogits.bytes(), losses.bytes()};
  };
  const auto one = bytes(1);
  CHECK(bytes(2) == one);
  CHECK(bytes(3) == one);
}

}  // namespace mtl::test
