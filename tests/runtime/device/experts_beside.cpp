// What belongs to a mixture of experts beside the way of its rows (experts.cpp): the block that all
// tokens go through, and the biases that balance the experts.
#include <limits>

#include "runtime/device/ops_test.h"

namespace mtl::test {

TEST_CASE("the block of all tokens, with a gate and without, against plain loops") {
  for_each_device([](Device& device) {
    std::mt19937 random(7);
    for (const int64_t n : {1, 37, 300}) {
      for (const int64_t cols : {1, 7, 16, 33, 768}) {
        for (const DType type : kComputeTypes) {
          INFO(n << " tokens of " << cols << ", type " << safetensors_name(type));
          Held from(type, {n, cols}), to(type, {n, cols}), dy(type, {n, cols});
          Held gate(DType::f32, {n, 1}), dgate(type, {n, 1});
          gate.randomize(random, 3);
          from.randomize(random);
          dy.randomize(random);
          const std::vector<double> x = from.values(), before_dy = dy.values();
          const auto open = [&](int64_t t) { return 1 / (1 + std::exp(-gate[t])); };
          for (const bool gated : {false, true}) {
            to.randomize(random);
            std::vector<double> sums = to.values();
            device.add_shared(
                {.from = from.view, .gate = gated ? gate.view : Tensor{}, .to = to.view});
            for (int64_t i = 0; i < n * cols; ++i) {
              sums[static_cast<size_t>(i)] += from[i] * (gated ? open(i / cols) : 1);
            }
            check_close(to, sums, 2e-6, "sum");
          }
          device.add_shared_backward(
              {.x = from.view, .dy = dy.view, .gate = gate.view, .dgate = dgate.view});
          std::vector<double> y, dx, dots;
          for (int64_t t = 0; t < n; ++t) {
            double dot = 0;
            for (int64_t i = t * cols; i < (t + 1) * cols; ++i) {
              const auto at = static_cast<size_t>(i);
              dot += x[at] * before_dy[at];
              y.push_back(x[at] * open(t));
              dx.push_back(before_dy[at] * open(t));
            }
            dots.push_back(dot * open(t) * (1 - open(t)));
          }
          check_close(from, y, 1e-6, "y");
          check_close(dy, dx, 1e-6, "dx");
          check_close(dgate, dots, 2e-5 * std::sqrt(static_cast<double>(cols)), "dgate");
        }
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

}  // namespace mtl::test
