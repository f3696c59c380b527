// The optimizers, the clipping, the learning rate and the weight decay as the engine puts them
// together, against the textbook in double precision.
#include <algorithm>
#include <cmath>
#include <set>

#include <doctest/doctest.h>

#include "support/layouts.h"
#include "support/specs.h"

using namespace mtl;
using namespace mtl::test;

namespace optimizer_test {

namespace {

constexpr int32_t kVocab = 61;
constexpr int64_t kSteps = 8;

struct Moments {
  std::vector<double> value, first, second;
  const ParamRow* row = nullptr;
};

// Rows of doubles, for the textbook's Newton and Schulz.
using Rows = std::vector<std::vector<double>>;

Rows product(const Rows& a, const Rows& b) {
  Rows c(a.size(), std::vector<double>(b.front().size(), 0.0));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t k = 0; k < b.size(); ++k) {
      for (size_t j = 0; j < b[k].size(); ++j) c[i][j] += a[i][k] * b[k][j];
    }
  }
  return c;
}

Rows transposed(const Rows& a) {
  Rows t(a.front().size(), std::vector<double>(a.size()));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[i].size(); ++j) t[j][i] = a[i][j];
  }
  return t;
}

// As K. Jordan et al. have it: X = a X + (b A + c A A) X with A = X X^T.
using Polynomial = std::array<double, 3>;
std::vector<Polynomial> polynomials(const std::string& coefficients) {
  if (coefficients == "simple") return {{3.4445, -4.7750, 2.0315}};
  if (coefficients == "quintic") {
    return {{4.0848, -6.8946, 2.9270},
            {3.9505, -6.3029, 2.6377},
            {3.7418, -5.5913, 2.3037},
            {2.8769, -3.1427, 1.2046},
            {2.8366, -3.0525, 1.2012}};
  }
  return {{8.2051, -22.9019, 16.4607}, {4.0664, -2.8612, 0.5184}, {3.9096, -2.8234, 0.5250},
          {3.2856, -2.4647, 0.5074},   {2.2779, -1.6447, 0.4162}, {1.8726, -1.2307, 0.3585},
          {1.8564, -1.2132, 0.3568},   {1.8750, -1.2500, 0.3750}};
}

Rows orthogonal(Rows x, const TrainSpec::Optimizer::Muon& muon) {
  const std::vector<Polynomial> all = polynomials(muon.coefficients);
  double squares = 0;
  for (const auto& row : x) {
    for (const double value : row) squares += value * value;
  }
  for (auto& row : x) {
    for (double& value : row) value /= std::sqrt(squares);
  }
  for (size_t step = 0; step < static_cast<size_t>(muon.steps); ++step) {
    const Polynomial& of = all[step % all.size()];
    const Rows a = product(x, transposed(x)), aa = product(a, a);
    const Rows ax = product(a, x), aax = product(aa, x);
    for (size_t i = 0; i < x.size(); ++i) {
      for (size_t j = 0; j < x[i].size(); ++j) {
        x[i][j] = of[0] * x[i][j] + of[1] * ax[i][j] + of[2] * aax[i][j];
      }
    }
  }
  return x;
}

// What follows from a step's gradients, in double.
class Reference {
 public:
  Reference(const TrainSpec& spec, const Plan& plan, const GlobalTensors& initial) : spec_(spec) {
    for (const ParamRow& row : plan.table) {
      const std::vector<float>& values = initial.at(row.name);
      Moments& moments = of_[row.name];
      moments.value.assign(values.begin(), values.end());
      moments.first.assign(values.size(), 0.0);
      moments.second.assign(values.size(), 0.0);
      moments.row = &row;
    }
  }

  void step(const GlobalTensors& gradients, double loss_scale, double lr, double weight_decay) {
    ++steps_;
    double squares = 0;
    for (const auto& [name, gradient] : gradients) {
      for (const float g : gradient) squares += std::pow(g / loss_scale, 2);
    }
    norm_ = std::sqrt(squares);
    const double clip = std::min(1.0, spec_.optimizer.clip / (norm_ + 1e-6)) / loss_scale;
    for (auto& [name, moments] : of_) {
      const std::vector<float>& gradient = gradients.at(name);
      const double decay = moments.row->decays ? weight_decay : 0;
      if (spec_.optimizer.type == "muon" && moments.row->matrix) {
        update_matrix(moments, gradient, clip, lr, decay);
        continue;
      }
      for (size_t i = 0; i < gradient.size(); ++i) {
        update(moments.value[i], moments.first[i], moments.second[i], gradient[i] * clip, lr,
               decay);
      }
    }
  }

  double norm() const { return norm_; }
  std::vector<float> value(const std::string& name) const {
    const std::vector<double>& values = of_.at(name).value;
    return {values.begin(), values.end()};
  }

 private:
  void update(double& p, double& m, double& v, double g, double lr, double decay) const {
    const TrainSpec::Optimizer& o = spec_.optimizer;
    if (o.type == "adam" || o.type == "sgd") g += decay * p;
    if (o.type == "sgd") {
      m = o.momentum * m + g;
      p -= lr * m;
      return;
    }
    if (o.type == "lion") {
      const double direction = o.beta1 * m + (1 - o.beta1) * g;
      p -= lr * ((direction > 0 ? 1 : direction < 0 ? -1 : 0) + decay * p);
      m = o.beta2 * m + (1 - o.beta2) * g;
      return;
    }
    if (o.type != "adam") p -= lr * decay * p;
    m = o.beta1 * m + (1 - o.beta1) * g;
    v = o.beta2 * v + (1 - o.beta2) * g * g;
    const double t = steps_;
    const double first = m / (1 - std::pow(o.beta1, t)), second = v / (1 - std::pow(o.beta2, t));
    p -= lr * first / (std::sqrt(second) + o.eps);
  }

  // GPT-2's Q, K and V are three matrices side by side, stored [in, out].
  void update_matrix(Moments& of, const std::vector<float>& gradient, double clip, double lr,
                     double decay) const {
    const TrainSpec::Optimizer::Muon& muon = spec_.optimizer.muon;
    const auto rows = static_cast<size_t>(of.row->shape[0]);
    const auto all = static_cast<size_t>(of.row->shape[1]);
    const size_t cols = all / static_cast<size_t>(of.row->segments);
    for (size_t first = 0; first < all; first += cols) {
      Rows direction(rows, std::vector<double>(cols));
      for (size_t i = 0; i < rows; ++i) {
        for (size_t j = 0; j < cols; ++j) {
          const size_t at = i * all + first + j;
          const double g = gradient[at] * clip;
          of.first[at] = muon.momentum * of.first[at] + (1 - muon.momentum) * g;
          direction[i][j] =
              muon.nesterov ? muon.momentum * of.first[at] + (1 - muon.momentum) * g : of.first[at];
        }
      }
      direction = orthogonal(std::move(direction), muon);
      const auto out = static_cast<double>(of.row->out_in ? rows : cols);
      const auto in = static_cast<double>(of.row->out_in ? cols : rows);
      double scale = std::sqrt(std::max(out, in));
      if (muon.scale != "spectral") scale = std::sqrt(out / in);
      if (muon.scale == "shape") scale = std::max(1.0, scale);
      for (size_t i = 0; i < rows; ++i) {
        for (size_t j = 0; j < cols; ++j) {
          double& p = of.value[i * all + first + j];
          p -= lr * (muon.factor * scale * direction[i][j] + decay * p);
        }
      }
    }
  }

  const TrainSpec& spec_;
  std::map<std::string, Moments> of_;
  double norm_ = 0;
  int steps_ = 0;
};

TrainSpec spec_of(const std::string& type) {
  TrainSpec spec = spec_with({.steps = kSteps});
  spec.optimizer.type = type;
  spec.optimizer.momentum = 0.8;
  spec.optimizer.beta1 = 0.8;
  spec.optimizer.beta2 = 0.97;
  spec.optimizer.eps = 1e-6;
  spec.optimizer.clip = 0.5;  // it bites, at least at first
  spec.optimizer.weight_decay = 0.1;
  spec.optimizer.weight_decay_ramp = "linear";
  spec.optimizer.weight_decay_end = 0.9;
  spec.lr.max = type == "sgd" ? 1 : 0.01;
  spec.lr.min = 0.001;
  spec.lr.schedule = "linear";
  spec.lr.warmup = 2;
  return spec;
}

// Half the rate, the rate, then in a line to the minimum.
double lr_by_hand(const TrainSpec& spec, int64_t step) {
  if (step < 2) return spec.lr.max * static_cast<double>(step + 1) / 2;
  return spec.lr.max - (spec.lr.max - spec.lr.min) * static_cast<double>(step - 2) / 6;
}

void check_against_reference(const TrainSpec& spec, Layout layout) {
  CAPTURE(spec.optimizer.type);
  CAPTURE(layout.tp);
  CAPTURE(layout.dp);
  CAPTURE(layout.pp);
  const auto source = markov_tokens(5'000, kVocab);
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, 3);
  GlobalTensors initial, last;
  std::vector<GlobalTensors> gradients(kSteps);
  std::vector<StepResult> steps;
  Plan plan;
  run_layout(spec, kVocab, layout, [&](RankContext& rank) {
    rank.trainer.initialise();
    collect(rank.trainer, Which::master, initial);
    for (int64_t step = 0; step < kSteps; ++step) {
      // Before the step: Muon's directions come in the gradients' place.
      rank.trainer.gradients(step, *source, sampler);
      collect(rank.trainer, Which::grad, gradients[static_cast<size_t>(step)]);
      const StepResult result = rank.trainer.step(step, *source, sampler, {});
      if (rank.rank == 0) steps.push_back(result);
    }
    collect(rank.trainer, Which::master, last);
    if (rank.rank == 0) plan = rank.plan;
  });
  Reference reference(spec, plan, initial);
  for (int64_t step = 0; step < kSteps; ++step) {
    CAPTURE(step);
    const StepResult& result = steps[static_cast<size_t>(step)];
    const double lr = lr_by_hand(spec, step);
    CHECK(result.lr == doctest::Approx(lr).epsilon(1e-12));
    reference.step(gradients[static_cast<size_t>(step)], result.loss_scale, lr,
                   0.1 + 0.8 * static_cast<double>(step) / kSteps);
    CHECK(result.grad_norm == doctest::Approx(reference.norm()).epsilon(1e-6));
    if (step < 3) CHECK(result.grad_norm > spec.optimizer.clip);
  }
  for (const auto& [name, value] : last) {
    CAPTURE(name);
    CHECK(relative_error(value, initial.at(name)) > 2e-4);  // or there is nothing to compare
    // Five steps of Newton and Schulz make the smallest singular values 500 times as large, and
    // what fp32 has rounded of them.
    CHECK(relative_error(value, reference.value(name)) <
          (spec.optimizer.type == "muon" ? 5e-5 : 5e-6));
  }
}

}  // namespace

TEST_CASE("adamw and adam and sgd and lion with clipping and ramps equal the textbook") {
  for (const char* type : {"adamw", "adam", "sgd", "lion"})
    check_against_reference(spec_of(type), {});
}

TEST_CASE("optimizer state in shards and stages equals the textbook") {
  for (const char* type : {"adamw", "adam", "sgd", "lion"}) {
    check_against_reference(spec_of(type), {.tp = 2, .dp = 2, .pp = 2});
  }
  TrainSpec whole = spec_of("sgd");
  whole.parallel.zero = 0;
  check_against_reference(whole, {.dp = 2});
}

TEST_CASE("muon equals the textbook, whole and divided") {
  TrainSpec spec = spec_of("muon");
  check_against_reference(spec, {});
  check_against_reference(spec, {.tp = 2, .dp = 2, .pp = 2});
  check_against_reference(spec, {.dp = 4});
  spec.optimizer.muon.coefficients = "quintic";
  spec.optimizer.muon.steps = 7;
  check_against_reference(spec, {.dp = 2});
  spec.optimizer.muon.coefficients = "polar_express";
  // Each of the last ones once as the last: those behind it mend what it does.
  for (const int64_t steps : {6, 7, 8}) {
    spec.optimizer.muon.steps = steps;
    check_against_reference(spec, {.tp = 2});
  }
  spec.optimizer.muon = {
      .momentum = 0.9, .nesterov = false, .steps = 3, .coefficients = "simple", .scale = "shape"};
  spec.parallel.zero = 0;
  check_against_reference(spec, {.tp = 2, .dp = 2});
  spec.optimizer.muon.scale = "unit_rms";
  spec.parallel.zero = 3;
  check_against_reference(spec, {.dp = 4});
}

TEST_CASE("moments have PyTorch's names") {
  using Names = std::set<std::string>;
  const auto names = [](const std::string& type) {
    std::map<bool, Names> found;  // by whether it is a matrix of a layer
    run_layout(spec_of(type), kVocab, {}, [&](RankContext& rank) {
      for (const ParameterState& parameter : rank.trainer.state()) {
        for (const auto& moment : parameter.moments) {
          found[parameter.row->matrix].insert(moment.first);
        }
      }
    });
    return found;
  };
  const Names adam = {"exp_avg", "exp_avg_sq"}, momentum = {"momentum_buffer"};
  CHECK(names("adamw") == std::map<bool, Names>{{false, adam}, {true, adam}});
  CHECK(names("sgd") == std::map<bool, Names>{{false, momentum}, {true, momentum}});
  CHECK(names("lion") == std::map<bool, Names>{{false, {"exp_avg"}}, {true, {"exp_avg"}}});
  CHECK(names("muon") == std::map<bool, Names>{{false, adam}, {true, momentum}});
}

TEST_CASE("the loss scale is taken out of the update") {
  for (const char* type : {"adamw", "sgd", "muon"}) {
    TrainSpec spec = spec_of(type);
    spec.precision.dtype = "fp16";
    spec.precision.loss_scale.initial = 4096;
    check_against_reference(spec, {});
  }
}

}  // namespace optimizer_test
