// Cross-entropy against a double-precision reference: padding, ignored targets, shards.
#include "runtime/device/ops_test.h"

namespace mtl::test {

namespace {

struct Problem {
  int64_t rows, columns, valid;
  double deviation;
};
const Problem kProblems[] = {{1, 1, 1, 1},       {3, 2, 1, 1},        {2, 17, 17, 3},
                             {5, 64, 50, 10},    {4, 100, 100, 1},    {7, 2049, 2048, 30},
                             {3, 5000, 4097, 2}, {2, 50304, 50257, 5}};

// The op's tensors for one shard.
struct Shard {
  Shard(DType type, int64_t rows, int64_t columns)
      : logits(type, {rows, columns}),
        targets(DType::i32, {rows}),
        row_max(DType::f32, {rows}),
        sum_exp(DType::f32, {rows}),
        target_logit(DType::f32, {rows}),
        loss(DType::f32, {rows}) {}
  CrossEntropy args(int64_t first, int64_t valid) {
    return {.logits = logits.view,
            .targets = targets.view,
            .first = first,
            .valid = valid,
            .row_max = row_max.view,
            .sum_exp = sum_exp.view,
            .target_logit = target_logit.view,
            .loss = loss.view};
  }
  Held logits, targets, row_max, sum_exp, target_logit, loss;
};

void fill_problem(Shard& shard, const Problem& problem, std::mt19937& random) {
  shard.logits.randomize(random, problem.deviation);
  // Padding columns hold what must not be seen.
  for (int64_t r = 0; r < problem.rows; ++r) {
    for (int64_t c = problem.valid; c < problem.columns; ++c) {
      shard.logits.set(r * problem.columns + c, 1000.0);
    }
  }
  shard.targets.randomize_ids(random, 0, static_cast<int>(problem.valid));
  if (problem.rows > 1) shard.targets.set(1, -1);
}

// Losses of the rows of a full vocabulary; 0 where ignored.
std::vector<double> reference_losses(const std::vector<double>& logits, const Held& targets,
                                     const Problem& problem) {
  std::vector<double> losses;
  for (int64_t r = 0; r < problem.rows; ++r) {
    const double* row = logits.data() + r * problem.columns;
    double max = -INFINITY, sum = 0;
    for (int64_t c = 0; c < problem.valid; ++c) max = std::max(max, row[c]);
    for (int64_t c = 0; c < problem.valid; ++c) sum += std::exp(row[c] - max);
    const auto target = static_cast<int64_t>(targets[r]);
    losses.push_back(target < 0 ? 0 : max + std::log(sum) - row[target]);
  }
  return losses;
}

std::vector<double> reference_gradient(const std::vector<double>& logits, const Held& targets,
                                       const Problem& problem, double scale) {
  std::vector<double> gradient(logits.size(), 0.0);
  for (int64_t r = 0; r < problem.rows; ++r) {
    const auto target = static_cast<int64_t>(targets[r]);
    if (target < 0) continue;
    const double* row = logits.data() + r * problem.columns;
    double max = -INFINITY, sum = 0;
    for (int64_t c = 0; c < problem.valid; ++c) max = std::max(max, row[c]);
    for (int64_t c = 0; c < problem.valid; ++c) sum += std::exp(row[c] - max);
    for (int64_t c = 0; c < problem.valid; ++c) {
      gradient[static_cast<size_t>(r * problem.columns + c)] =
          (std::exp(row[c] - max) / sum - (c == target ? 1 : 0)) * scale;
    }
  }
  return gradient;
}

}  // namespace

TEST_CASE("cross-entropy against the reference, with padding and ignored targets") {
  for_each_device([](Device& device) {
    std::mt19937 random(1);
    for (const Problem& problem : kProblems) {
      for (const DType type : kComputeTypes) {
        INFO(problem.rows << " x " << problem.columns << " valid " << problem.valid << " type "
                          << safetensors_name(type));
        Shard shard(type, problem.rows, problem.columns);
        fill_problem(shard, problem, random);
        const std::vector<double> logits = shard.logits.values();
        const CrossEntropy args = shard.args(0, problem.valid);
        device.cross_entropy_max(args);
        for (int64_t r = 0; r < problem.rows; ++r) {
          double max = -INFINITY;
          for (int64_t c = 0; c < problem.valid; ++c) {
            max = std::max(max, logits[static_cast<size_t>(r * problem.columns + c)]);
          }
          CHECK(shard.row_max[r] == max);
        }
        device.cross_entropy_sum(args);
        for (int64_t r = 0; r < problem.rows; ++r) {
          double sum = 0;
          for (int64_t c = 0; c < problem.valid; ++c) {
            sum +=
                std::exp(logits[static_cast<size_t>(r * problem.columns + c)] - shard.row_max[r]);
          }
          // exp is good to 2e-7, and logit - max is rounded before it: 2^-24 of up to 300 at terms
          // that are then negligible, of about 5 at those that matter; f32 sums of 128 terms.
          CHECK(std::abs(shard.sum_exp[r] / sum - 1) <= 2e-6);
          const auto target = static_cast<int64_t>(shard.targets[r]);
          CHECK(shard.target_logit[r] ==
                (target < 0 ? 0 : logits[static_cast<size_t>(r * problem.columns + target)]));
        }
        device.cross_entropy_loss(args);
        // The loss is a difference of numbers up to 100, stored in f32.
        check_close(shard.loss, reference_losses(logits, shard.targets, problem), 1e-5, "loss");
        const float scale = 0.37f;
        device.cross_entropy_backward(args, scale);
        // Probabilities are at most 1 and good to about 2e-6 of themselves (as the sums).
        check_close(shard.logits,
                    reference_gradient(logits, shard.targets, problem, static_cast<double>(scale)),
                    2e-6, "gradient");
        for (int64_t r = 0; r < problem.rows; ++r) {
          for (int64_t c = 0; c < problem.columns; ++c) {
            if (c >= problem.valid || shard.targets[r] < 0) {
              REQUIRE(shard.logits[r * problem.columns + c] == 0);
            }
          }
        }
      }
    }
  });
}

TEST_CASE("logits that are capped count as what the cap leaves of them") {
  for_each_device([](Device& device) {
    std::mt19937 random(8);
    for (const Problem& problem : kProblems) {
      for (const DType type : kComputeTypes) {
        for (const double cap : {0.5, 8.0, 100.0}) {
          INFO(problem.rows << " x " << problem.columns << " valid " << problem.valid << " type "
                            << safetensors_name(type) << " cap " << cap);
          Shard shard(type, problem.rows, problem.columns);
          fill_problem(shard, problem, random);
          std::vector<double> logits = shard.logits.values();
          for (double& x : logits) x = cap * std::tanh(x / cap);
          std::vector<double> gradient = reference_gradient(logits, shard.targets, problem, 1);
          for (size_t i = 0; i < gradient.size(); ++i) {
            gradient[i] *= 1 - (logits[i] / cap) * (logits[i] / cap);
          }
          CrossEntropy args = shard.args(0, problem.valid);
          args.cap = static_cast<float>(cap);
          device.cross_entropy_losses(args);
          check_close(shard.loss, reference_losses(logits, shard.targets, problem), 3e-5, "loss");
          device.fill(shard.loss.view, 77);
          device.cross_entropy_both(args, 1);
          check_close(shard.loss, reference_losses(logits, shard.targets, problem), 3e-5, "loss");
          // The tanh of a capped logit of 100 is good to 2e-7 of it.
          check_close(shard.logits, gradient, 3e-5, "gradient");
        }
      }
    }
  });
}

TEST_CASE("the losses at once are those of one step after the other") {
  const auto check = [](Device& device, Shard& shard, const Problem& problem) {
    const CrossEntropy args = shard.args(0, problem.valid);
    device.cross_entropy_max(args);
    device.cross_entropy_sum(args);
    device.cross_entropy_loss(args);
    const auto row_max = shard.row_max.values(), sums = shard.sum_exp.values(),
               target_logits = shard.target_logit.values(), losses = shard.loss.values();
    for (Held* held : {&shard.row_max, &shard.sum_exp, &shard.target_logit, &shard.loss}) {
      device.fill(held->view, 77);
    }
    device.cross_entropy_losses(args);
    CHECK(shard.row_max.values() == row_max);
    CHECK(shard.target_logit.values() == target_logits);
    // Sums of other parts, each brought to the largest by factors that are good to 2e-7.
    for (int64_t r = 0; r < problem.rows; ++r) {
      CHECK(std::abs(shard.sum_exp[r] / sums[static_cast<size_t>(r)] - 1) <= 4e-6);
    }
    check_close(shard.loss, losses, 2e-5, "loss");

    // With the gradient: bit for bit that of two steps.
    const auto logits = shard.logits.values(), sums_at_once = shard.sum_exp.values(),
               losses_at_once = shard.loss.values();
    device.cross_entropy_backward(args, 0.5f);
    const auto gradient = shard.logits.values();
    for (size_t i = 0; i < logits.size(); ++i) {
      shard.logits.set(static_cast<int64_t>(i), logits[i]);
    }
    for (Held* held : {&shard.row_max, &shard.sum_exp, &shard.target_logit, &shard.loss}) {
      device.fill(held->view, 77);
    }
    device.cross_entropy_both(args, 0.5f);
    CHECK(shard.row_max.values() == row_max);
    CHECK(shard.sum_exp.values() == sums_at_once);
    CHECK(shard.target_logit.values() == target_logits);
    CHECK(shard.loss.values() == losses_at_once);
    CHECK(shard.logits.values() == gradient);
  };
  for_each_device([&](Device& device) {
    std::mt19937 random(6);
    for (const Problem& problem : kProblems) {
      for (const DType type : kComputeTypes) {
        INFO(problem.rows << " x " << problem.columns << " valid " << problem.valid << " type "
                          << safetensors_name(type));
        Shard shard(type, problem.rows, problem.columns);
        fill_problem(shard, problem, random);
        check(device, shard, problem);
      }
    }
    // The largest comes late, again and again, and what comes before it counts for nothing or a
    // little; whole packs are -inf.
    for (const int64_t columns : {40, 5003, 40'960}) {
      INFO("ascending, columns " << columns);
      Shard shard(DType::f32, 2, columns);
      for (int64_t c = 0; c < columns; ++c) {
        const auto at = static_cast<double>(c);
        shard.logits.set(c, c < columns / 2 ? -INFINITY : at * 1e-3);
        shard.logits.set(columns + c, at * 0.3 - 2000);
      }
      for (int64_t r = 0; r < 2; ++r) shard.targets.set(r, static_cast<double>(columns - 1));
      check(device, shard, {2, columns, columns, 1});
    }
  });
}

TEST_CASE("small probabilities keep their relative accuracy in the gradient") {
  // What training sees of a vocabulary of 50k: gradients of 1e-5 and less, many of them.
  for_each_device([](Device& device) {
    std::mt19937 random(4);
    const Problem problem = {2, 5000, 5000, 4};
    Shard shard(DType::f32, problem.rows, problem.columns);
    shard.logits.randomize(random, problem.deviation);
    shard.targets.randomize_ids(random, 0, 5000);
    const std::vector<double> logits = shard.logits.values();
    const CrossEntropy args = shard.args(0, problem.valid);
    device.cross_entropy_max(args);
    device.cross_entropy_sum(args);
    device.cross_entropy_backward(args, 1);
    const std::vector<double> expected = reference_gradient(logits, shard.targets, problem, 1);
    double worst = 0;
    for (int64_t i = 0; i < shard.logits.size(); ++i) {
      const double reference = expected[static_cast<size_t>(i)];
      worst = std::max(worst, std::abs(shard.logits[i] - reference) / std::abs(reference));
    }
    // logit - max up to 32 is rounded to 2^-20 at worst; that is the relative error of its exp.
    CHECK(worst < 3e-6);
  });
}

TEST_CASE("two half-shards, reduced by hand, are the full vocabulary") {
  for_each_device([](Device& device) {
    std::mt19937 random(2);
    for (const DType type : kComputeTypes) {
      const int64_t rows = 9, half = 130, valid = 251;  // the second shard has 9 padding columns
      const Problem problem = {rows, 2 * half, valid, 4};
      Shard full(type, rows, 2 * half), low(type, rows, half), high(type, rows, half);
      fill_problem(full, problem, random);
      Shard* halves[] = {&low, &high};
      const CrossEntropy full_args = full.args(0, valid);
      const CrossEntropy args[] = {low.args(0, half), high.args(half, valid - half)};
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < 2 * half; ++c) {
          halves[c / half]->logits.set(r * half + c % half, full.logits[r * 2 * half + c]);
        }
        low.targets.set(r, full.targets[r]);
        high.targets.set(r, full.targets[r]);
      }
      full.targets.set(2, half - 1), low.targets.set(2, half - 1), high.targets.set(2, half - 1);
      full.targets.set(3, half), low.targets.set(3, half), high.targets.set(3, half);
      device.cross_entropy_max(full_args);
      device.cross_entropy_sum(full_args);
      device.cross_entropy_loss(full_args);
      device.cross_entropy_backward(full_args, 2);
      for (const CrossEntropy& a : args) device.cross_entropy_max(a);
      for (int64_t r = 0; r < rows; ++r) {
        const double max = std::max(low.row_max[r], high.row_max[r]);
        low.row_max.set(r, max);
        high.row_max.set(r, max);
      }
      for (const CrossEntropy& a : args) device.cross_entropy_sum(a);
      for (int64_t r = 0; r < rows; ++r) {
        const double sum = low.sum_exp[r] + high.sum_exp[r];
        const double target = low.target_logit[r] + high.target_logit[r];
        CHECK(target == full.target_logit[r]);
        for (Shard* shard : halves) {
          shard->sum_exp.set(r, sum);
          shard->target_logit.set(r, target);
        }
      }
      for (int shard = 0; shard < 2; ++shard) {
        device.cross_entropy_loss(args[shard]);
        device.cross_entropy_backward(args[shard], 2);
        // The same numbers but for the order of one sum.
        check_close(halves[shard]->loss, full.loss.values(), 2e-6, "loss of a shard");
        std::vector<double> expected;
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < half; ++c) {
            expected.push_back(full.logits[r * 2 * half + shard * half + c]);
          }
        }
        // Two values of 16 bits that straddle a rounding boundary differ by one unit: 2^-8 of 2 in
        // bf16, 2^-11 of 2 in f16.
        const double unit = type == DType::bf16  ? 2.0 / 256
                            : type == DType::f16 ? 2.0 / 2048
                                                 : 1e-6;
        check_close(halves[shard]->logits, expected, unit, "gradient of a shard");
      }
    }
  });
}

TEST_CASE("a shard that is all padding contributes nothing") {
  for_each_device([](Device& device) {
    Shard shard(DType::f32, 3, 20);
    device.fill(shard.logits.view, 7);
    const CrossEntropy args = shard.args(100, 0);
    device.cross_entropy_max(args);
    for (int64_t r = 0; r < 3; ++r) {
      CHECK(shard.row_max[r] == -INFINITY);
      shard.row_max.set(r, 1.5);  // the maximum of the other shards
    }
    device.cross_entropy_sum(args);
    CHECK(shard.sum_exp[0] == 0);
    CHECK(shard.target_logit[0] == 0);
    device.fill(shard.sum_exp.view, 2);
    device.cross_entropy_backward(args, 1);
    CHECK(shard.logits.values() == std::vector<double>(60, 0.0));
  });
}

TEST_CASE("the gradient is the finite difference of the loss") {
  for_each_device([](Device& device) {
    std::mt19937 random(3);
    const Problem problem = {4, 23, 21, 2};
    Shard shard(DType::f32, problem.rows, problem.columns);
    fill_problem(shard, problem, random);
    std::vector<double> logits = shard.logits.values();
    const auto total = [&] {
      double sum = 0;
      for (const double loss : reference_losses(logits, shard.targets, problem)) sum += loss;
      return sum;
    };
    std::vector<double> expected;
    for (double& value : logits) {
      const double saved = value, h = 1e-5;
      value = saved + h;
      const double up = total();
      value = saved - h;
      expected.push_back((up - total()) / (2 * h));
      value = saved;
    }
    const CrossEntropy args = shard.args(0, problem.valid);
    device.cross_entropy_max(args);
    device.cross_entropy_sum(args);
    device.cross_entropy_backward(args, 1);
    check_close(shard.logits, expected, 1e-6, "gradient");
  });
}

TEST_CASE("the exponential, seen through rows of one column") {
  // Errors relative to e^x: `fixed`, and so much more for each unit of x.
  const auto check = [](Device& device, double fixed, double per_unit) {
    const int64_t n = 200001;
    Shard shard(DType::f32, n, 1);
    for (int64_t i = 0; i < n; ++i) {
      shard.logits.set(i, -87.3 + 175.3 * static_cast<double>(i) / static_cast<double>(n));
    }
    const CrossEntropy args = shard.args(0, 1);
    device.cross_entropy_sum(args);  // row_max is 0
    double worst = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double x = shard.logits[i], error = std::abs(shard.sum_exp[i] / std::exp(x) - 1);
      worst = std::max(worst, error - per_unit * std::abs(x));
    }
    INFO("worst relative error " << worst);
    CHECK(worst <= fixed);

    Shard special(DType::f32, 6, 1);
    const double inputs[] = {0, -INFINITY, -88, -1e30, NAN, -0.0};
    for (int64_t i = 0; i < 6; ++i) special.logits.set(i, inputs[i]);
    device.cross_entropy_sum(special.args(0, 1));
    CHECK(special.sum_exp[0] == 1);
    CHECK(special.sum_exp[1] == 0);
    CHECK(special.sum_exp[2] < 1e-38);  // 0, or a subnormal number
    CHECK(special.sum_exp[3] == 0);
    CHECK(std::isnan(special.sum_exp[4]));
    CHECK(special.sum_exp[5] == 1);
  };
  if (gpu_under_test() == nullptr) {
    for_each_cpu_device([&](Device& device) { check(device, 2e-7, 0); });
  }
  // exponential.h: an instruction for 2^x, and a product with a rounded log2(e).
  for_each_cuda_device([&](Device& device) { check(device, 5e-7, 0x1.4p-24); });
}

TEST_CASE("a NaN among the logits reaches the loss") {
  for_each_device([](Device& device) {
    for (const int64_t at : {0, 17, 99}) {
      for (const DType type : kComputeTypes) {
        Shard shard(type, 1, 100);
        shard.logits.set(at, NAN);
        const CrossEntropy args = shard.args(0, 100);
        device.cross_entropy_max(args);
        device.cross_entropy_sum(args);
        device.cross_entropy_loss(args);
        CHECK(std::isnan(shard.loss[0]));
        device.fill(shard.loss.view, 0);
        device.cross_entropy_losses(args);
        CHECK(std::isnan(shard.loss[0]));
        device.fill(shard.loss.view, 0);
        device.cross_entropy_both(args, 1);
        CHECK(std::isnan(shard.loss[0]));
        CHECK(std::isnan(shard.logits[0]));
      }
    }
  });
}

}  // namespace mtl::test
