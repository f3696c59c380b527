// Tokens and the experts that they go to, and in double precision what makes these weigh as they
// do.
#pragma once

#include <cmath>
#include <limits>

#include "runtime/device/ops_test.h"

namespace mtl::test {

// Tokens, experts, and how many of them a token has.
struct ExpertsShape {
  int64_t n, experts, k, seq;
};
// What experts weigh, and by what they are chosen.
struct Scoring {
  ExpertScores scores;
  bool biased = false;
};
// The tensors of a routing.
struct Routed {
  Routed(const ExpertsShape& s, const Scoring& how = {})
      : shape(s),
        scoring(how),
        bias(DType::f32, {s.experts}),
        logits(DType::f32, {s.n, s.experts}),
        weights(DType::f32, {s.n, s.k}),
        experts(DType::i32, {s.n, s.k}),
        rows(DType::i32, {s.n, s.k}),
        assignments(DType::i32, {s.n * s.k}),
        counts(DType::i32, {s.experts}) {}
  ExpertRoutes routes() const {
    return {.weights = weights.view,
            .experts = experts.view,
            .rows = rows.view,
            .assignments = assignments.view,
            .counts = counts.view};
  }
  void route(Device& device) {
    device.route_experts({.logits = logits.view,
                          .scores = scoring.scores,
                          .bias = scoring.biased ? bias.view : Tensor{},
                          .routes = routes()});
  }
  double logit(int64_t t, int64_t e) const { return logits[t * shape.experts + e]; }
  double sigmoid(int64_t t, int64_t e) const { return 1 / (1 + std::exp(-logit(t, e))); }
  // What the experts of a token are chosen by.
  double rank(int64_t t, int64_t e) const {
    const double rank = scoring.biased ? sigmoid(t, e) + bias[e] : logit(t, e);
    return std::isnan(rank) ? -std::numeric_limits<double>::infinity() : rank;
  }
  // And what they add to the score of their group.
  double rank_in_group(int64_t t, int64_t e) const {
    if (scoring.biased) return rank(t, e);
    if (scoring.scores.sigmoid) return sigmoid(t, e);
    return scoring.scores.normalize ? rank(t, e) : score(t, e);
  }
  // Of all experts of a token, and their sum.
  double score(int64_t t, int64_t e) const {
    if (scoring.scores.sigmoid) return sigmoid(t, e);
    double all = 0;
    for (int64_t i = 0; i < shape.experts; ++i) all += std::exp(logit(t, i));
    return std::exp(logit(t, e)) / all;
  }
  double sum_of_scores(int64_t t) const {
    double sum = 0;
    for (int64_t e = 0; e < shape.experts; ++e) sum += score(t, e);
    return sum;
  }
  int64_t expert(int64_t t, int64_t j) const {
    return static_cast<int64_t>(experts[t * shape.k + j]);
  }
  // Of the experts that were chosen.
  double weight(int64_t t, int64_t j) const {
    double sum = 0;
    for (int64_t i = 0; i < shape.k; ++i) sum += score(t, expert(t, i));
    return scoring.scores.scale * score(t, expert(t, j)) /
           (scoring.scores.normalize ? sum + 1e-20 : 1);
  }

  const ExpertsShape shape;
  const Scoring scoring;
  Held bias;
  Held logits, weights, experts, rows, assignments, counts;
};

}  // namespace mtl::test
