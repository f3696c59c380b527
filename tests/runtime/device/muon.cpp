// What Muon does element by element, against the textbook in double precision.
#include <cmath>
#include <tuple>

#include "common/half.h"
#include "runtime/device/many_parameters.h"

namespace mtl::test {

namespace {

// That of masters which are the weights: f32.
struct HeldUpdate {
  Held master{DType::f32, {kFlat}}, buffer{DType::f32, {kState}}, grad{DType::f32, {kFlat}};
  HeldPieces pieces{kParts};
  explicit HeldUpdate(std::mt19937& random) {
    for (Held* held : {&master, &buffer, &grad}) held->randomize(random);
  }
};

}  // namespace

TEST_CASE("momentum puts the direction in place of the gradient and leaves the gaps alone") {
  for_each_device([](Device& device) {
    for (const bool nesterov : {true, false}) {
      CAPTURE(nesterov);
      std::mt19937 random(7);
      const HeldUpdate held(random);
      std::vector<double> buffer = held.buffer.values(), grad = held.grad.values();
      const HeldFactor factor(0.25f);
      for (int step = 0; step < 2; ++step) {
        device.momentum({.pieces = held.pieces.view,
                         .buffer = held.buffer.view,
                         .grad = held.grad.view,
                         .factor = factor.view,
                         .momentum = 0.75f,
                         .nesterov = nesterov});
        for (const HeldPieces::Part& part : kParts) {
          for (int64_t i = 0; i < part.count; ++i) {
            double& m = buffer[static_cast<size_t>(part.state + i)];
            double& g = grad[static_cast<size_t>(part.offset + i)];
            m = 0.75 * m + 0.25 * (0.25 * g);
            g = nesterov ? 0.75 * m + 0.25 * (0.25 * g) : m;
          }
        }
      }
      check_close(held.buffer, buffer, 1e-6, "buffer");
      check_close(held.grad, grad, 1e-6, "direction");
    }
  });
}

TEST_CASE("descend goes along the direction and decays what decays") {
  for_each_device([](Device& device) {
    std::mt19937 random(8);
    const HeldUpdate held(random);
    std::vector<double> master = held.master.values();
    const HeldFactor factor(1e9f);  // only whether it is a number matters
    device.descend({.pieces = held.pieces.view,
                    .master = held.master.view,
                    .grad = held.grad.view,
                    .weights = {},
                    .factor = factor.view,
                    .lr = 0.1f,
                    .weight_decay = 0.5f});
    for (const HeldPieces::Part& part : kParts) {
      for (int64_t i = 0; i < part.count; ++i) {
        double& p = master[static_cast<size_t>(part.first_weight() + i)];
        p -= 0.1 * (held.grad[part.offset + i] + (part.decays ? 0.5 : 0.0) * p);
      }
    }
    check_close(held.master, master, 1e-6, "master");
  });
}

TEST_CASE("descend writes masters in halves, and 16-bit weights") {
  for_each_device([](Device& device) {
    for (const DType type : {DType::bf16, DType::f16}) {
      CAPTURE(safetensors_name(type));
      std::mt19937 random(9);
      constexpr int64_t kN = 5000;
      Held grad(DType::f32, {kN}), whole(DType::f32, {kN});
      Held rests(DType::u16, {kN}), weights(type, {kN});
      grad.randomize(random), whole.randomize(random);
      std::vector<double> expected = whole.values();
      for (int64_t i = 0; i < kN; ++i) {
        expected[static_cast<size_t>(i)] -= 0.5 * grad[i];
        const F32Parts parts = parts_of_f32(whole.view.as<float>()[i]);
        if (type == DType::bf16) weights.view.as<uint16_t>()[i] = parts.bf16;
        rests.view.as<uint16_t>()[i] = parts.rest;
      }
      const HeldPieces pieces(kN);
      const HeldFactor factor;
      device.descend({.pieces = pieces.view,
                      .master = type == DType::bf16 ? rests.view : whole.view,
                      .grad = grad.view,
                      .weights = weights.view,
                      .factor = factor.view,
                      .lr = 0.5f});
      for (int64_t i = 0; i < kN && type == DType::bf16; ++i) {
        whole.view.as<float>()[i] =
            f32_of_parts({weights.view.as<uint16_t>()[i], rests.view.as<uint16_t>()[i]});
      }
      check_close(whole, expected, 1e-6, "masters");
      check_close(weights, whole.values(), 0, "weights");
    }
  });
}

TEST_CASE("momentum and descend with a factor that is no number change no bit") {
  for_each_device([](Device& device) {
    std::mt19937 random(10);
    const HeldUpdate held(random);
    device.fill(held.buffer.view.slice(0, 100), 1e-40f);  // an update would flush these
    const HeldFactor factor(NAN);
    const auto before = std::tuple(held.master.bytes(), held.buffer.bytes(), held.grad.bytes());
    device.momentum({.pieces = held.pieces.view,
                     .buffer = held.buffer.view,
                     .grad = held.grad.view,
                     .factor = factor.view});
    device.descend({.pieces = held.pieces.view,
                    .master = held.master.view,
                    .grad = held.grad.view,
                    .weights = {},
                    .factor = factor.view,
                    .lr = 0.1f,
                    .weight_decay = 0.1f});
    const bool unchanged =
        before == std::tuple(held.master.bytes(), held.buffer.bytes(), held.grad.bytes());
    CHECK(unchanged);
  });
}

TEST_CASE("normalize and blend of every size") {
  for_each_device([](Device& device) {
    std::mt19937 random(11);
    for (const int64_t n : {1, 17, 4096, 8193, 300'001}) {
      for (const DType type : kComputeTypes) {
        INFO("n " << n << " type " << safetensors_name(type));
        Held x(type, {n}), y(type, {n});
        x.randomize(random), y.randomize(random);
        std::vector<double> normal, blended;
        double squares = 0;
        for (int64_t i = 0; i < n; ++i) squares += x[i] * x[i];
        for (int64_t i = 0; i < n; ++i) {
          blended.push_back(1.5 * x[i] - 0.75 * y[i]);
          normal.push_back(x[i] / std::sqrt(squares));
        }
        device.blend(x.view, y.view, 1.5f, -0.75f);
        check_close(y, blended, 2e-6, "blend");
        device.normalize(x.view);
        check_close(x, normal, 2e-7, "normalize");
      }
    }
    // Squares that are no f32, and nothing at all.
    Held tiny(DType::f32, {100}), zero(DType::bf16, {9});
    device.fill(tiny.view, 1e-25f);
    device.normalize(tiny.view);
    for (int64_t i = 0; i < 100; ++i) CHECK(tiny[i] == doctest::Approx(1e-25 / kLeastNorm));
    Held large(DType::f32, {100});
    device.fill(large.view, 1e25f);
    device.normalize(large.view);
    for (int64_t i = 0; i < 100; ++i) CHECK(large[i] == doctest::Approx(0.1));
    device.fill(zero.view, 0.0f);
    device.normalize(zero.view);
    for (int64_t i = 0; i < 9; ++i) CHECK(zero[i] == 0);
  });
}

}  // namespace mtl::test
