// AdamW, Adam and SGD against double-precision references, and the fixed chunks of sum_squares.
#include "runtime/device/ops_test.h"

namespace mtl::test {

namespace {

// The copy for the matmuls is the masters, rounded.
void check_weights(const Held& weights, const Held& master) {
  int64_t wrong = 0;
  for (int64_t i = 0; i < master.size(); ++i) {
    const float x = master.view.as<float>()[i];
    const uint16_t expected =
        weights.view.dtype == DType::bf16 ? bf16_of_float(x) : f16_of_float(x);
    wrong += weights.view.as<uint16_t>()[i] != expected;
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("adamw follows the double-precision reference over ten steps") {
  struct Case {
    int64_t n;
    float weight_decay, grad_scale, beta1, beta2;
    DType weights;   // f32: none
    int64_t offset;  // 0: aligned as the arena is
    bool decoupled = true;
  };
  for_each_device([](Device& device) {
    for (const Case& c : {Case{1, 0, 1, 0.9f, 0.95f, DType::f32, 1},
                          {17, 0.1f, 0.25f, 0.9f, 0.95f, DType::bf16, 1},
                          {1000, 0.1f, 1, 0.9f, 0.999f, DType::bf16, 0},
                          {9001, 0, 0.5f, 0.8f, 0.99f, DType::f32, 0},
                          {9001, 0.3f, 2, 0.9f, 0.95f, DType::bf16, 0},
                          {17, 0.1f, 0.25f, 0.9f, 0.95f, DType::f16, 1},
                          {9001, 0.3f, 2, 0.9f, 0.95f, DType::f16, 0},
                          {1, 0.1f, 1, 0.9f, 0.95f, DType::f32, 1, false},
                          {9001, 0.3f, 2, 0.9f, 0.95f, DType::f16, 0, false},
                          {1003, 0.1f, 0.5f, 0.9f, 0.999f, DType::bf16, 1, false}}) {
      CAPTURE(c.n);
      CAPTURE(c.decoupled);
      CAPTURE(safetensors_name(c.weights));
      std::mt19937 random(1);
      Held master(DType::f32, {c.n}), m(DType::f32, {c.n}), v(DType::f32, {c.n});
      const bool copies = c.weights != DType::f32;
      Held grad(DType::f32, {c.n}), weights(copies ? c.weights : DType::bf16, {c.n}, c.offset);
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
                      .weights = copies ? weights.view : Tensor{},
                      .lr = lr,
                      .beta1 = c.beta1,
                      .beta2 = c.beta2,
                      .eps = eps,
                      .weight_decay = c.weight_decay,
                      .decoupled = c.decoupled,
                      .grad_scale = c.grad_scale,
                      .step = step});
        const double decay = static_cast<double>(c.weight_decay);
        for (size_t i = 0; i < p.size(); ++i) {
          double g = grad[static_cast<int64_t>(i)] * static_cast<double>(c.grad_scale);
          if (!c.decoupled) g += decay * p[i];
          rm[i] = beta1 * rm[i] + (1 - beta1) * g;
          rv[i] = beta2 * rv[i] + (1 - beta2) * g * g;
          const double mhat = rm[i] / (1 - std::pow(beta1, static_cast<double>(step)));
          const double vhat = rv[i] / (1 - std::pow(beta2, static_cast<double>(step)));
          if (c.decoupled) p[i] -= static_cast<double>(lr) * decay * p[i];
          p[i] -= static_cast<double>(lr) * mhat / (std::sqrt(vhat) + static_cast<double>(eps));
        }
      }
      // Ten updates of at most 0.1 to values below 6, each rounded to f32 twice.
      check_close(master, p, 5e-6, "master");
      check_close(m, rm, 1e-6, "exp_avg");
      // With the decay inside, gradients are up to 2 instead of 0.5: squares of 4.
      check_close(v, rv, c.decoupled ? 1e-7 : 1e-6, "exp_avg_sq");
      if (copies) check_weights(weights, master);
    }
  });
}

TEST_CASE("sgd follows the double-precision reference over ten steps") {
  struct Case {
    int64_t n;
    float momentum, weight_decay, grad_scale;
    DType weights;   // f32: none
    int64_t offset;  // 0: aligned as the arena is
  };
  for_each_device([](Device& device) {
    for (const Case& c : {Case{1, 0, 0, 1, DType::f32, 1},
                          {17, 0.9f, 0.1f, 0.25f, DType::bf16, 1},
                          {1000, 0.9f, 0, 2, DType::f16, 0},
                          {9001, 0.5f, 0.3f, 1, DType::f32, 0},
                          {9001, 0.9f, 0.01f, 0.5f, DType::bf16, 0},
                          {4097, 0.99f, 0.1f, 0.5f, DType::f16, 1}}) {
      CAPTURE(c.n);
      CAPTURE(safetensors_name(c.weights));
      std::mt19937 random(3);
      const bool copies = c.weights != DType::f32;
      Held master(DType::f32, {c.n}), momentum(DType::f32, {c.n}), grad(DType::f32, {c.n});
      Held weights(copies ? c.weights : DType::bf16, {c.n}, c.offset);
      master.randomize(random);
      std::vector<double> p = master.values(), buffer(p.size(), 0.0);
      for (int step = 1; step <= 10; ++step) {
        grad.randomize(random, 0.1);
        const float lr = 0.01f * static_cast<float>(step);
        device.sgd({.master = master.view,
                    .momentum_buffer = momentum.view,
                    .grad = grad.view,
                    .weights = copies ? weights.view : Tensor{},
                    .lr = lr,
                    .momentum = c.momentum,
                    .weight_decay = c.weight_decay,
                    .grad_scale = c.grad_scale});
        for (size_t i = 0; i < p.size(); ++i) {
          const double g = grad[static_cast<int64_t>(i)] * static_cast<double>(c.grad_scale) +
                           static_cast<double>(c.weight_decay) * p[i];
          buffer[i] = static_cast<double>(c.momentum) * buffer[i] + g;
          p[i] -= static_cast<double>(lr) * buffer[i];
        }
      }
      // Ten updates to values below 6 (2^-22 each at most), from buffers below 16.
      check_close(master, p, 5e-6, "master");
      check_close(momentum, buffer, 5e-6, "momentum_buffer");
      if (copies) check_weights(weights, master);
    }
  });
}

TEST_CASE("f16 weights keep their subnormals though the optimizer flushes f32's") {
  for_each_device([](Device& device) {
    for (const int64_t offset : {0, 1}) {
      Held master(DType::f32, {21}), momentum(DType::f32, {21}), grad(DType::f32, {21});
      Held weights(DType::f16, {21}, offset);
      for (int64_t i = 0; i < 21; ++i)
        master.set(i, std::ldexp(i % 2 ? -1.75 : 1.25, -30 + int(i)));
      device.sgd({.master = master.view,
                  .momentum_buffer = momentum.view,
                  .grad = grad.view,
                  .weights = weights.view,
                  .lr = 0.1f});
      check_weights(weights, master);
      CHECK(weights[10] == 0x5p-22);  // 1.25 * 2^-20
    }
  });
}

TEST_CASE("adamw lets moments without gradient reach zero") {
  // Subnormal numbers would never decay (0.9 times the smallest is rounded back to it) and cost
  // a hundred cycles each.
  for_each_device([](Device& device) {
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
  const auto sums = [&](Device& device) {
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
  };
  for_each_cpu_device(sums);
  for (const std::vector<double>& result : results) CHECK(result == results[0]);
  // A GPU's order is another one, but the same at every address.
  results.clear();
  for_each_cuda_device(sums);
  CHECK(results[0] == results[1]);
}

TEST_CASE("sum_squares does not overflow where f32 would") {
  for_each_device([](Device& device) {
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
