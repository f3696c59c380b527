// AdamW, Adam and SGD against double-precision references, and many parameters at once against one
// by one.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "common/half.h"
#include "runtime/device/many_parameters.h"

namespace mtl::test {

namespace {

// Masters as an update takes them: f32, and in bf16 beside the weights, which are half of them.
class HeldMasters {
 public:
  HeldMasters(int64_t n, DType type, int64_t offset = 0)
      : whole(DType::f32, {n}),
        rests(DType::u16, {n}, offset),
        weights(type == DType::f32 ? DType::bf16 : type, {n}, offset),
        type_(type) {}

  void randomize(std::mt19937& random) {
    whole.randomize(random);
    take_apart();
  }
  void set(int64_t i, double x) {
    whole.set(i, x);
    take_apart();
  }
  Tensor master() const { return type_ == DType::bf16 ? rests.view : whole.view; }
  Tensor copy() const { return type_ == DType::f32 ? Tensor{} : weights.view; }
  // Behind an update: `whole` has what became of them, and the weights are that, rounded.
  void check_weights() {
    if (type_ == DType::f32) return;
    int64_t wrong = 0;
    for (int64_t i = 0; i < whole.size(); ++i) {
      float& x = whole.view.as<float>()[i];
      const uint16_t weight = weights.view.as<uint16_t>()[i];
      if (type_ == DType::bf16) {
        x = f32_of_parts({weight, rests.view.as<uint16_t>()[i]});
        wrong += parts_of_f32(x).bf16 != weight;
      } else {
        wrong += weight != f16_of_float(x);
      }
    }
    CHECK(wrong == 0);
  }

  Held whole, rests, weights;

 private:
  void take_apart() {
    if (type_ != DType::bf16) return;
    for (int64_t i = 0; i < whole.size(); ++i) {
      const F32Parts parts = parts_of_f32(whole.view.as<float>()[i]);
      weights.view.as<uint16_t>()[i] = parts.bf16;
      rests.view.as<uint16_t>()[i] = parts.rest;
    }
  }
  DType type_;
};

// An update without gradient, and what has become of the masters.
void update_by_nothing(Device& device, HeldMasters& masters) {
  const int64_t n = masters.whole.size();
  Held momentum(DType::f32, {n}), grad(DType::f32, {n});
  const HeldPieces pieces(n);
  const HeldFactor factor;
  device.sgd({.pieces = pieces.view,
              .master = masters.master(),
              .momentum_buffer = momentum.view,
              .grad = grad.view,
              .weights = masters.copy(),
              .factor = factor.view,
              .lr = 0.1f});
  masters.check_weights();
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
      Held m(DType::f32, {c.n}), v(DType::f32, {c.n}), grad(DType::f32, {c.n});
      HeldMasters masters(c.n, c.weights, c.offset);
      masters.randomize(random);
      std::vector<double> p = masters.whole.values(), rm(p.size(), 0.0), rv(p.size(), 0.0);
      const double beta1 = static_cast<double>(c.beta1), beta2 = static_cast<double>(c.beta2);
      const HeldPieces pieces(c.n);
      const HeldFactor factor(c.grad_scale);
      for (int64_t step = 1; step <= 10; ++step) {
        grad.randomize(random, 0.1);
        const float lr = 0.01f * static_cast<float>(step), eps = 1e-8f;
        device.adamw({.pieces = pieces.view,
                      .master = masters.master(),
                      .exp_avg = m.view,
                      .exp_avg_sq = v.view,
                      .grad = grad.view,
                      .weights = masters.copy(),
                      .factor = factor.view,
                      .lr = lr,
                      .beta1 = c.beta1,
                      .beta2 = c.beta2,
                      .eps = eps,
                      .weight_decay = c.weight_decay,
                      .decoupled = c.decoupled,
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
      masters.check_weights();
      check_close(masters.whole, p, 5e-6, "master");
      check_close(m, rm, 1e-6, "exp_avg");
      // With the decay inside, gradients are up to 2 instead of 0.5: squares of 4.
      check_close(v, rv, c.decoupled ? 1e-7 : 1e-6, "exp_avg_sq");
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
      Held momentum(DType::f32, {c.n}), grad(DType::f32, {c.n});
      HeldMasters masters(c.n, c.weights, c.offset);
      masters.randomize(random);
      std::vector<double> p = masters.whole.values(), buffer(p.size(), 0.0);
      const HeldPieces pieces(c.n);
      const HeldFactor factor(c.grad_scale);
      for (int step = 1; step <= 10; ++step) {
        grad.randomize(random, 0.1);
        const float lr = 0.01f * static_cast<float>(step);
        device.sgd({.pieces = pieces.view,
                    .master = masters.master(),
                    .momentum_buffer = momentum.view,
                    .grad = grad.view,
                    .weights = masters.copy(),
                    .factor = factor.view,
                    .lr = lr,
                    .momentum = c.momentum,
                    .weight_decay = c.weight_decay});
        for (size_t i = 0; i < p.size(); ++i) {
          const double g = grad[static_cast<int64_t>(i)] * static_cast<double>(c.grad_scale) +
                           static_cast<double>(c.weight_decay) * p[i];
          buffer[i] = static_cast<double>(c.momentum) * buffer[i] + g;
          p[i] -= static_cast<double>(lr) * buffer[i];
        }
      }
      // Ten updates to values below 6 (2^-22 each at most), from buffers below 16.
      masters.check_weights();
      check_close(masters.whole, p, 5e-6, "master");
      check_close(momentum, buffer, 5e-6, "momentum_buffer");
    }
  });
}

TEST_CASE("lion follows the double-precision reference over ten steps") {
  for_each_device([](Device& device) {
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
      for (const int64_t n : {1, 17, 9001}) {
        CAPTURE(n);
        CAPTURE(safetensors_name(type));
        std::mt19937 random(4);
        Held m(DType::f32, {n}), grad(DType::f32, {n});
        HeldMasters masters(n, type);
        masters.randomize(random);
        std::vector<double> p = masters.whole.values(), average(p.size(), 0.0);
        const HeldPieces pieces(n);
        const HeldFactor factor(0.5f);
        for (int step = 1; step <= 10; ++step) {
          grad.randomize(random, 0.1);
          grad.set(n - 1, 0);  // whose sign is none
          device.lion({.pieces = pieces.view,
                       .master = masters.master(),
                       .exp_avg = m.view,
                       .grad = grad.view,
                       .weights = masters.copy(),
                       .factor = factor.view,
                       .lr = 0.01f,
                       .beta1 = 0.75f,
                       .beta2 = 0.875f,
                       .weight_decay = 0.5f});
          for (size_t i = 0; i < p.size(); ++i) {
            const double g = 0.5 * grad[static_cast<int64_t>(i)];
            const double direction = 0.75 * average[i] + 0.25 * g;
            p[i] -= 0.01 * ((direction > 0 ? 1 : direction < 0 ? -1 : 0) + 0.5 * p[i]);
            average[i] = 0.875 * average[i] + 0.125 * g;
          }
        }
        masters.check_weights();
        check_close(masters.whole, p, 5e-6, "master");
        check_close(m, average, 1e-6, "exp_avg");
      }
    }
  });
}

TEST_CASE("f16 weights keep their subnormals though the optimizer flushes f32's") {
  for_each_device([](Device& device) {
    for (const int64_t offset : {0, 1}) {
      HeldMasters masters(21, DType::f16, offset);
      for (int64_t i = 0; i < 21; ++i)
        masters.set(i, std::ldexp(i % 2 ? -1.75 : 1.25, -30 + int(i)));
      update_by_nothing(device, masters);
      CHECK(masters.weights[10] == 0x5p-22);  // 1.25 * 2^-20
    }
  });
}

TEST_CASE("masters in two halves are f32, every bit of them") {
  // What a bf16 lacks says on which side of it the f32 was, also halfway between two.
  constexpr float kLargest = 3.40282347e38f;
  const std::vector<float> some = {0.0f,     -0.0f,     1.0f,      1.00390625f, 1.01171875f,
                                   -1.0f,    3e-40f,    -1e-45f,   kLargest,    -kLargest,
                                   INFINITY, -INFINITY, 0.333333f, -2.7182817f, 1.17549435e-38f};
  for_each_device([&](Device& device) {
    for (const int64_t offset : {0, 1}) {
      const auto n = static_cast<int64_t>(some.size());
      HeldMasters masters(n, DType::bf16, offset);
      for (int64_t i = 0; i < n; ++i)
        masters.set(i, static_cast<double>(some[static_cast<size_t>(i)]));
      update_by_nothing(device, masters);  // it counts subnormal masters as 0
      for (int64_t i = 0; i < n; ++i) {
        const float was = some[static_cast<size_t>(i)], is = masters.whole.view.as<float>()[i];
        CAPTURE(was);
        if (std::isfinite(was) && (was == 0 || std::isnormal(was))) CHECK(is == was);
        if (!std::isfinite(was)) CHECK_FALSE(std::isfinite(is));
      }
      // Ties away from zero; the largest f32 are no bf16, and come back.
      CHECK(masters.weights[3] == 1.0078125);
      CHECK(masters.weights[4] == 1.015625);
      CHECK(std::isinf(masters.weights[8]));
      // A number that is none is none in the weights.
      masters.set(2, NAN);
      update_by_nothing(device, masters);
      CHECK(std::isnan(masters.weights[2]));
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
    const HeldPieces pieces(20);
    const HeldFactor factor;
    device.adamw({.pieces = pieces.view,
                  .master = master.view,
                  .exp_avg = m.view,
                  .exp_avg_sq = v.view,
                  .grad = grad.view,
                  .weights = {},
                  .factor = factor.view,
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

namespace {

bool same(const Tensor& flat, int64_t first, const Held& part) {
  return std::memcmp(flat.slice(first, part.size()).data, part.view.data,
                     static_cast<size_t>(part.view.bytes())) == 0;
}

}  // namespace

TEST_CASE("an update of many parameters gives the bits of one by one and leaves the gaps alone") {
  for_each_device([](Device& device) {
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
      for (const bool adam : {true, false}) {
        CAPTURE(safetensors_name(type));
        CAPTURE(adam);
        const bool copies = type != DType::f32;
        std::mt19937 random(5);
        const DType master_type = type == DType::bf16 ? DType::u16 : DType::f32;
        Held master(master_type, {copies ? kState : kFlat}), grad(DType::f32, {kFlat});
        Held m(DType::f32, {kState}), v(DType::f32, {kState}), weights(type, {kFlat});
        master.randomize(random, 10'000), grad.randomize(random);
        m.randomize(random, 0.1), v.randomize(random, 0.01, 1), weights.randomize(random);
        const std::vector<uint8_t> weights_before = weights.bytes(), m_before = m.bytes();
        const HeldFactor factor(0.5f);
        const auto update = [&](const Pieces& pieces, Tensor masters, Tensor first, Tensor second,
                                Tensor gradient, Tensor into) {
          if (adam) {
            device.adamw({.pieces = pieces,
                          .master = masters,
                          .exp_avg = first,
                          .exp_avg_sq = second,
                          .grad = gradient,
                          .weights = copies ? into : Tensor{},
                          .factor = factor.view,
                          .lr = 0.01f,
                          .weight_decay = 0.3f,
                          .step = 3});
          } else {
            device.sgd({.pieces = pieces,
                        .master = masters,
                        .momentum_buffer = first,
                        .grad = gradient,
                        .weights = copies ? into : Tensor{},
                        .factor = factor.view,
                        .lr = 0.01f,
                        .weight_decay = 0.3f});
          }
        };
        std::vector<std::unique_ptr<Held>> expected;  // master, m, v, weights of each part
        for (const HeldPieces::Part& part : kParts) {
          const auto make = [&](DType dtype) -> Held& {
            expected.push_back(
                std::make_unique<Held>(dtype, std::initializer_list<int64_t>{part.count}));
            return *expected.back();
          };
          const Tensor masters =
              held_part(make(master_type), master.view, copies ? part.state : part.first_weight());
          const Tensor first = held_part(make(DType::f32), m.view, part.state);
          const Tensor second = held_part(make(DType::f32), v.view, part.first_second());
          const Tensor into = held_part(make(type), weights.view, part.first_weight());
          Held gradient(DType::f32, {part.count});
          held_part(gradient, grad.view, part.offset);
          const HeldPieces alone(
              std::vector<HeldPieces::Part>{{.count = part.count, .decays = part.decays}});
          update(alone.view, masters, first, second, gradient.view, into);
        }
        // All, and in two halves as buckets are.
        const HeldPieces pieces(kParts);
        Pieces front = pieces.view, back = pieces.view;
        front.table = pieces.view.table.slice(0, 3 * sizeof(Piece));
        front.cells = back.first_cell = pieces.view.table.as<Piece>()[3].cells;
        back.table = pieces.view.table.slice(3 * sizeof(Piece), 4 * sizeof(Piece));
        back.cells -= front.cells;
        update(front, master.view, m.view, v.view, grad.view, weights.view);
        update(back, master.view, m.view, v.view, grad.view, weights.view);
        for (size_t i = 0; i < kParts.size(); ++i) {
          CAPTURE(i);
          const HeldPieces::Part& part = kParts[i];
          CHECK(same(master.view, copies ? part.state : part.first_weight(), *expected[4 * i]));
          CHECK(same(m.view, part.state, *expected[4 * i + 1]));
          CHECK(same(v.view, part.first_second(), *expected[4 * i + 2]));
          CHECK(same(weights.view, part.first_weight(), *expected[4 * i + 3]));
        }
        const std::vector<uint8_t> weights_after = weights.bytes(), m_after = m.bytes();
        int64_t moved = 0, touched = 0;
        for (int64_t i = 0; i < kFlat; ++i) {
          const bool gap =
              std::none_of(kParts.begin(), kParts.end(), [&](const HeldPieces::Part& p) {
                return i >= p.first_weight() && i < p.first_weight() + p.count;
              });
          const auto size = static_cast<size_t>(bytes_of(type));
          const bool equal = std::memcmp(&weights_before[static_cast<size_t>(i) * size],
                                         &weights_after[static_cast<size_t>(i) * size], size) == 0;
          touched += gap && !equal;
          moved += !gap && !equal;
        }
        CHECK(touched == 0);
        if (copies) CHECK(moved > 10000);
        CHECK(m_before != m_after);
        CHECK(std::memcmp(&m_before[24678 * 4], &m_after[24678 * 4], (kState - 24678) * 4) == 0);
      }
    }
  });
}

TEST_CASE("an update whose factor is no number changes no bit") {
  for_each_device([](Device& device) {
    std::mt19937 random(6);
    Held master(DType::u16, {kState}), m(DType::f32, {kState}), v(DType::f32, {kState});
    Held grad(DType::f32, {kFlat}), weights(DType::bf16, {kFlat});
    for (Held* held : {&master, &m, &v, &grad, &weights}) held->randomize(random, 100);
    device.fill(v.view, -0.0f);
    device.fill(m.view.slice(0, 100), 1e-40f);  // an update would flush these
    const HeldPieces pieces(kParts);
    const HeldFactor factor(NAN);
    const auto before = std::tuple(master.bytes(), m.bytes(), v.bytes(), weights.bytes());
    device.adamw({.pieces = pieces.view,
                  .master = master.view,
                  .exp_avg = m.view,
                  .exp_avg_sq = v.view,
                  .grad = grad.view,
                  .weights = weights.view,
                  .factor = factor.view,
                  .lr = 0.1f,
                  .weight_decay = 0.1f});
    device.sgd({.pieces = pieces.view,
                .master = master.view,
                .momentum_buffer = m.view,
                .grad = grad.view,
                .weights = weights.view,
                .factor = factor.view,
                .lr = 0.1f,
                .weight_decay = 0.1f});
    const bool unchanged =
        before == std::tuple(master.bytes(), m.bytes(), v.bytes(), weights.bytes());
    CHECK(unchanged);
  });
}

}  // namespace mtl::test
