// The dropout mask against Random123's Philox, and the ops that use it.
#include <Random123/philox.h>

#include "runtime/device/ops_test.h"

namespace mtl::test {

namespace {

uint32_t philox_word(uint64_t key, uint64_t element) {
  const uint64_t counter = element / 4;
  r123::Philox4x32 philox;
  r123::Philox4x32::ctr_type c = {
      {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0}};
  r123::Philox4x32::key_type k = {{static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)}};
  return philox(c, k)[element % 4];
}

// Derivative of f at x, with an error of about 1e-9 for the smooth functions here.
template <class F>
double derivative(F f, double& x) {
  const double h = 1e-5, at = x;
  x = at + h;
  const double up = f();
  x = at - h;
  const double down = f();
  x = at;
  return (up - down) / (2 * h);
}

}  // namespace

double dropout_factor(const Dropout& dropout, int64_t i) {
  if (!dropout) return 1;
  const double p = static_cast<double>(dropout.probability);
  const auto& pass = *dropout.pass.as<const DropoutPass>();
  const uint64_t key = dropout_key(pass.step_key, dropout.layer, dropout.site);
  const auto element = static_cast<uint64_t>(pass.first_sequence * dropout.sequence_elements + i);
  return static_cast<double>(philox_word(key, element)) >= p * 4294967296.0 ? 1 / (1 - p) : 0;
}

TEST_CASE("the reference Philox gives the published words") {
  // kat_vectors of Random123: counter 0 with key 0.
  CHECK(philox_word(0, 0) == 0x6627e8d5u);
  CHECK(philox_word(0, 1) == 0xe169c58du);
  CHECK(philox_word(0, 2) == 0xbc57ac4cu);
  CHECK(philox_word(0, 3) == 0x9b00dbd8u);
}

TEST_CASE("the vector Philox has exactly the reference's words") {
  for (const Isa isa : isas_of_this_machine()) {
    const kernels::VectorKernels table = vector_kernels(isa);
    for (const uint64_t key :
         {uint64_t{0}, uint64_t{1}, uint64_t{0xa4093822299f31d0}, ~uint64_t{0}}) {
      // The last ones cross the point where the counter's low word wraps, and the last counters.
      for (const uint64_t first : {uint64_t{0}, uint64_t{5}, (uint64_t{1} << 34) - 30,
                                   (uint64_t{1} << 50) + 3, ~uint64_t{0} - 70}) {
        for (uint64_t i = 0; i < 70; ++i) {
          // Kept with the word itself as threshold, dropped with one more: the word is exact.
          const uint32_t word = philox_word(key, first + i);
          float factors[70];
          table.mask_factors({key, word, 2}, first, 70, factors);
          CHECK(factors[i] == 2.0f);
          if (word == 0xffffffffu) continue;
          table.mask_factors({key, word + 1, 2}, first, 70, factors);
          CHECK(factors[i] == 0.0f);
        }
      }
    }
  }
}

TEST_CASE("mask factors do not depend on where a range begins") {
  for (const Isa isa : isas_of_this_machine()) {
    const kernels::VectorKernels table = vector_kernels(isa);
    const kernels::Mask mask = *mask_of(dropout_in_test_memory(0.3f));
    std::vector<float> whole(5000);
    table.mask_factors(mask, 123, 5000, whole.data());
    double kept = 0;
    for (const float f : whole) kept += f != 0;
    // Five standard deviations of a binomial: 5 sqrt(5000 * 0.3 * 0.7) = 162.
    CHECK(std::abs(kept - 3500) < 162);
    for (const int64_t skip : {1, 2, 3, 4, 17, 1023, 1024, 1025, 4999}) {
      std::vector<float> tail(static_cast<size_t>(5000 - skip));
      table.mask_factors(mask, static_cast<uint64_t>(123 + skip), 5000 - skip, tail.data());
      CHECK(std::equal(tail.begin(), tail.end(), whole.begin() + skip));
    }
  }
}

TEST_CASE("thresholds are exact at the edges of a probability") {
  CHECK(mask_of(dropout_in_test_memory(0.5f))->threshold == 0x80000000u);
  CHECK(mask_of(dropout_in_test_memory(0.5f))->scale == 2.0f);
  // 2^-40: a word of 0 is below it (dropped), 1 is not.
  CHECK(mask_of(dropout_in_test_memory(0x1p-40f))->threshold == 1u);
  CHECK(mask_of(dropout_in_test_memory(1 - 0x1p-24f))->threshold == 0xffffff00u);
  CHECK_FALSE(mask_of({}).has_value());
}

TEST_CASE("dropout keys are what they have always been, and all different") {
  const auto key = [](uint64_t seed, int64_t step, int64_t layer, int64_t site) {
    return dropout_key(dropout_step_key(seed, step), layer, site);
  };
  // Written down when they were defined: changing them would change every run that has dropout.
  CHECK(key(0, 0, 0, 0) == 0x2130748aaac80268u);
  CHECK(key(1234, 1, 0, 0) == 0x2848592887fb0555u);
  CHECK(key(1234, 1, 0, 1) == 0x645b71dc89f28954u);
  CHECK(key(42, 100000, 11, 2) == 0xb7101c21decd628eu);
  CHECK(key(~uint64_t{0}, -1, -1, 3) == 0x6229977518193a8fu);
  std::vector<uint64_t> keys;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    for (int64_t step = 0; step < 20; ++step) {
      for (int64_t layer = -1; layer < 12; ++layer) {
        for (int64_t site = 0; site < 4; ++site) {
          keys.push_back(key(seed, step, layer, site));
        }
      }
    }
  }
  std::sort(keys.begin(), keys.end());
  CHECK(std::adjacent_find(keys.begin(), keys.end()) == keys.end());
}

TEST_CASE("position_forward and position_backward against the reference") {
  struct Case {
    int64_t rows, seq, cols, first_row;
    float probability;
  };
  for_each_device([](Device& device) {
    std::mt19937 random(1);
    for (const Case c : {Case{1, 1, 1, 0, 0},
                         {6, 3, 7, 0, 0.1f},
                         {5, 5, 16, 15, 0.5f},
                         {12, 4, 33, 100, 0.9f},
                         {16, 8, 768, 1 << 20, 0.1f},
                         {2, 2, 2500, 6, 0.2f},
                         {256, 64, 64, 0, 0},
                         // Parts of sequences: inside one, over its end, several and a bit.
                         {3, 8, 17, 2, 0.1f},
                         {4, 8, 33, 4, 0},
                         {5, 8, 768, 14, 0.2f},
                         {7, 8, 16, 1, 0},
                         {21, 8, 5, 13, 0.1f},
                         {1, 1000, 3, 999, 0},
                         {300, 1000, 64, 2850, 0.1f}}) {
      for (const DType type : kComputeTypes) {
        for (const bool in_place : {false, true}) {
          INFO("rows " << c.rows << " seq " << c.seq << " cols " << c.cols << " first row "
                       << c.first_row << " p " << c.probability << " type "
                       << safetensors_name(type));
          const Dropout dropout = dropout_in_test_memory(c.probability, 3, c.seq * c.cols);
          const int64_t rows = c.rows;
          const auto position = [&](int64_t i) { return (c.first_row + i / c.cols) % c.seq; };
          const auto factor = [&](int64_t i) {
            return dropout_factor(dropout, c.first_row * c.cols + i);
          };
          Held x(type, {rows, c.cols}), positions(type, {c.seq, c.cols}), out(type, {rows, c.cols});
          x.randomize(random);
          positions.randomize(random);
          std::vector<double> expected;
          for (int64_t i = 0; i < x.size(); ++i) {
            expected.push_back((x[i] + positions[position(i) * c.cols + i % c.cols]) * factor(i));
          }
          Held& target = in_place ? x : out;
          device.position_forward(x.view, positions.view, c.seq, target.view, dropout, c.first_row);
          // One addition and one multiplication of numbers below 60: 2^-23 of it.
          check_close(target, expected, 1e-5, "position_forward");

          Held dout(type, {rows, c.cols}), dx(type, {rows, c.cols});
          Held dpositions(DType::f32, {c.seq + 1, c.cols});  // a table may be longer
          dout.randomize(random);
          dpositions.randomize(random);
          const std::vector<double> before = dpositions.values();
          std::vector<double> expected_dx, expected_dpositions = before;
          const auto behind = expected_dpositions.end() - c.cols;
          if (!in_place) std::fill(expected_dpositions.begin(), behind, 0.0);
          for (int64_t i = 0; i < dout.size(); ++i) {
            expected_dx.push_back(dout[i] * factor(i));
            expected_dpositions[static_cast<size_t>(position(i) * c.cols + i % c.cols)] +=
                expected_dx.back();
          }
          Held& gradient = in_place ? dout : dx;
          device.position_backward(dout.view, c.seq, gradient.view, dpositions.view, in_place,
                                   dropout, c.first_row);
          check_close(gradient, expected_dx, 1e-5, "position_backward dx");
          check_close(dpositions, expected_dpositions, 3e-5, "position_backward dpositions");
        }
      }
    }
  });
}

TEST_CASE("bias_dropout_add and dropout_backward against the reference") {
  for_each_device([](Device& device) {
    std::mt19937 random(2);
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1},
                                     {1, 5},
                                     {7, 1},
                                     {3, 17},
                                     {5, 64},
                                     {70, 768},
                                     {2, 3072}}) {
      for (const DType type : kComputeTypes) {
        for (const float probability : {0.0f, 0.1f, 0.75f}) {
          for (const bool with_bias : {false, true}) {
            for (const bool in_place : {false, true}) {
              const float scale = with_bias ? 1.0f : 0.22f;
              INFO(rows << " x " << cols << " p " << probability << " scale " << scale);
              const int64_t first_row = 11;
              const Dropout dropout = dropout_in_test_memory(probability, 7, 50 * cols);
              const auto factor = [&, width = cols](int64_t i) {
                return dropout_factor(dropout, first_row * width + i);
              };
              Held x(type, {rows, cols}), bias(type, {cols}), residual(type, {rows, cols});
              Held out(type, {rows, cols});
              x.randomize(random);
              bias.randomize(random);
              residual.randomize(random);
              std::vector<double> expected, expected_dx;
              for (int64_t i = 0; i < x.size(); ++i) {
                const double sum = x[i] + (with_bias ? bias[i % cols] : 0);
                expected.push_back(residual[i] + scale * factor(i) * sum);
                expected_dx.push_back(scale * x[i] * factor(i));
              }
              Held& target = in_place ? residual : out;
              device.bias_dropout_add({.x = x.view,
                                       .bias = with_bias ? bias.view : Tensor{},
                                       .residual = residual.view,
                                       .out = target.view,
                                       .dropout = dropout,
                                       .first_row = first_row,
                                       .scale = scale});
              // Three roundings of numbers below 40.
              check_close(target, expected, 1e-5, "bias_dropout_add");
              Held& dx = in_place ? x : out;
              device.dropout_backward({.dout = x.view,
                                       .dx = dx.view,
                                       .dropout = dropout,
                                       .first_row = first_row,
                                       .scale = scale});
              check_close(dx, expected_dx, 1e-5, "dropout_backward");
            }
          }
        }
      }
    }
  });
}

TEST_CASE("the gradients of position and dropout ops are their finite differences") {
  for_each_device([](Device& device) {
    std::mt19937 random(3);
    const int64_t batch = 2, seq = 3, cols = 5, rows = batch * seq;
    const Dropout dropout = dropout_in_test_memory(0.4f);
    Held x(DType::f32, {rows, cols}), positions(DType::f32, {seq, cols});
    Held dout(DType::f32, {rows, cols}), dx(DType::f32, {rows, cols});
    Held dpositions(DType::f32, {seq, cols});
    x.randomize(random);
    positions.randomize(random);
    dout.randomize(random);
    std::vector<double> xs = x.values(), ps = positions.values();
    // loss = sum dout * dropout(x + positions)
    const auto loss = [&] {
      double sum = 0;
      for (int64_t i = 0; i < x.size(); ++i) {
        sum += dout[i] * dropout_factor(dropout, static_cast<int64_t>(i)) *
               (xs[static_cast<size_t>(i)] + ps[static_cast<size_t>(i % (seq * cols))]);
      }
      return sum;
    };
    std::vector<double> expected_dx, expected_dp;
    for (double& v : xs) expected_dx.push_back(derivative(loss, v));
    for (double& v : ps) expected_dp.push_back(derivative(loss, v));
    device.position_backward(dout.view, seq, dx.view, dpositions.view, false, dropout, 0);
    check_close(dx, expected_dx, 2e-6, "dx");
    check_close(dpositions, expected_dp, 2e-6, "dpositions");
    device.dropout_backward({.dout = dout.view, .dx = dx.view, .dropout = dropout});
    check_close(dx, expected_dx, 2e-6, "dropout_backward");
  });
}

}  // namespace mtl::test
