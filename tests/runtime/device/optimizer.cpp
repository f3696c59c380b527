// AdamW against a double-precision reference, and the fixed chunks of sum_squares.
#include "runtime/device/ops_test.h"

namespace mtl::test {

TEST_CASE("adamw follows the double-precision reference over ten steps") {
  struct Case {
    int64_t n;
    float weight_decay, grad_scale, beta1, beta2;
    bool weights;
    int64_t offset;  // 0: aligned as the arena is
  };
  for_each_isa([](Device& device) {
    for (const Case& c : {Case{1, 0, 1, 0.9f, 0.95f, false, 1},
                          {17, 0.1f, 0.25f, 0.9f, 0.95f, true, 1},
                          {1000, 0.1f, 1, 0.9f, 0.999f, true, 0},
                          {9001, 0, 0.5f, 0.8f, 0.99f, false, 0},
                          {9001, 0.3f, 2, 0.9f, 0.95f, true, 0}}) {
      std::mt19937 random(1);
      Held master(DType::f32, {c.n}), m(DType::f32, {c.n}), v(DType::f32, {c.n});
      Held grad(DType::f32, {c.n}), weights(DType::bf16, {c.n}, c.offset);
      master.randomize(random);
      std::vector<double> p = master.values(), rm(p.size(), 0.0), rv(p.size(), 0.0);
      const double beta1 = static_cast<double>(c.beta1), beta2 = static_cast<double>(c.beta2);
      for (int64_t step = 1; step <= 10; ++step) {
        grad.randomize(random, 0.1);
        const float lr = 0.01f * static_cast<float>(step), eps = 1e-8f;
        device.adamw({.master = master.view,
                      .exp_avg = m.view,
                      .exp_avg_sq = v.view,
                      .grad = grad.view,
                      .weights = c.weights ? weights.view : Tensor{},
                      .lr = lr,
                      .beta1 = c.beta1,
                      .beta2 = c.beta2,
                      .eps = eps,
                      .weight_decay = c.weight_decay,
                      .grad_scale = c.grad_scale,
                      .step = step});
        for (size_t i = 0; i < p.size(); ++i) {
          const double g = grad[static_cast<int64_t>(i)] * static_cast<double>(c.grad_scale);
          rm[i] = beta1 * rm[i] + (1 - beta1) * g;
          rv[i] = beta2 * rv[i] + (1 - beta2) * g * g;
          const double mhat = rm[i] / (1 - std::pow(beta1, static_cast<double>(step)));
          const double vhat = rv[i] / (1 - std::pow(beta2, static_cast<double>(step)));
          p[i] -= static_cast<double>(lr) * static_cast<double>(c.weight_decay) * p[i];
          p[i] -= static_cast<double>(lr) * mhat / (std::sqrt(vhat) + static_cast<double>(eps));
        }
      }
      // Ten updates of at most 0.1 to values below 6, each rounded to f32 twice.
      check_close(master, p, 5e-6, "master");
      check_close(m, rm, 1e-6, "exp_avg");
      check_close(v, rv, 1e-7, "exp_avg_sq");
      if (c.weights) {
        int64_t wrong = 0;
        for (int64_t i = 0; i < c.n; ++i) {
          wrong += weights.view.as<uint16_t>()[i] != bf16_of_float(master.view.as<float>()[i]);
        }
        CHECK(wrong == 0);
      }
    }
  });
}

TEST_CASE("adamw lets moments without gradient reach zero") {
  // Subnormal numbers would never decay (0.9 times the smallest is rounded back to it) and cost
  // a hundred cycles each.
  for_each_isa([](Device& device) {
    Held master(DType::f32, {20}), m(DType::f32, {20}), v(DType::f32, {20}), grad(DType::f32, {20});
    device.fill(m.view, 1e-40f);
    device.fill(v.view, -0.0f);
    device.fill(master.view, 1.0f);
    device.adamw({.master = master.view,
                  .exp_avg = m.view,
                  .exp_avg_sq = v.view,
                  .grad = grad.view,
                  .weights = {},
                  .lr = 0.1f});
    for (int64_t i = 0; i < 20; ++i) {
      CHECK(m[i] == 0);
      CHECK(master[i] == 1);
    }
    // And the host keeps its own arithmetic.
    volatile float tiny = 1e-40f;
    CHECK(tiny * 1.0f != 0.0f);
  });
}

TEST_CASE("sum_squares: fixed chunks, the same bits on every instruction set") {
  std::vector<std::vector<double>> results;
  for_each_isa([&](Device& device) {
    std::mt19937 random(2);
    std::vector<double> all;
    for (const int64_t n : {1, 15, 16, 17, 4095, 4096, 4097, 8192, 20001}) {
      const int64_t chunks = (n + Device::kNormChunk - 1) / Device::kNormChunk;
      Held x(DType::f32, {n}), partials(DType::f64, {chunks});
      x.randomize(random, 1000);
      device.sum_squares(x.view, partials.view);
      for (int64_t c = 0; c < chunks; ++c) {
        double sum = 0;
        for (int64_t i = c * Device::kNormChunk; i < std::min(n, (c + 1) * Device::kNormChunk);
             ++i) {
          sum += x[i] * x[i];
        }
        // Squares of f32 are exact in f64; 4096 additions of 2^-53.
        CHECK(std::abs(partials[c] / sum - 1) <= 1e-12);
        all.push_back(partials[c]);
      }
    }
    results.push_back(all);
  });
  for (const std::vector<double>& result : results) CHECK(result == results[0]);
}

TEST_CASE("sum_squares does not overflow where f32 would") {
  for_each_isa([](Device& device) {
    Held x(DType::f32, {100}), partials(DType::f64, {1});
    device.fill(x.view, 1e30f);
    device.sum_squares(x.view, partials.view);
    CHECK(partials[0] == doctest::Approx(1e62));
    x.set(50, NAN);
    device.sum_squares(x.view, partials.view);
    CHECK(std::isnan(partials[0]));
  });
}

}  // namespace mtl::test
