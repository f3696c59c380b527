// GELU alone, its exact form, SwiGLU and GeGLU against a double-precision reference and finite
// differences.
#include "runtime/device/cpu/kernels/matmul_kernels.h"
#include "runtime/device/ops_test.h"

namespace mtl::test {

namespace {

double silu(double x) {
  return x / (1 + std::exp(-x));
}

// x [n, 2f] = gate | up.
std::vector<double> swiglu(const std::vector<double>& x, int64_t f) {
  std::vector<double> y;
  for (size_t row = 0; row < x.size(); row += static_cast<size_t>(2 * f)) {
    for (size_t i = row; i < row + static_cast<size_t>(f); ++i) {
      y.push_back(silu(x[i]) * x[i + static_cast<size_t>(f)]);
    }
  }
  return y;
}

// By central differences of silu alone: good to 1e-9 for values of order 1.
std::vector<double> swiglu_gradient(const std::vector<double>& dy, const std::vector<double>& x,
                                    int64_t f) {
  std::vector<double> dx(x.size());
  const double h = 1e-5;
  for (size_t i = 0; i < dy.size(); ++i) {
    const size_t gate =
        i / static_cast<size_t>(f) * static_cast<size_t>(2 * f) + i % static_cast<size_t>(f);
    const size_t up = gate + static_cast<size_t>(f);
    dx[gate] = dy[i] * x[up] * (silu(x[gate] + h) - silu(x[gate] - h)) / (2 * h);
    dx[up] = dy[i] * silu(x[gate]);
  }
  return dx;
}

const std::pair<int64_t, int64_t> kMatrices[] = {{1, 1},  {3, 2},   {2, 15},   {5, 16},
                                                 {7, 17}, {4, 129}, {70, 768}, {1, 5000}};

}  // namespace

TEST_CASE("gelu_forward gives the bits of the matmul's epilogue") {
  for_each_device([](Device& device) {
    std::mt19937 random(1);
    for (const auto& [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 5},
                                  {3, 7, 5},
                                  {37, 601, 5},
                                  {64, 3072, 64}}) {
      for (const DType type : kComputeTypes) {
        INFO(m << " x " << n << " type " << safetensors_name(type));
        Held a(type, {m, k}), b(type, {k, n}), c(type, {m, n}), aux(type, {m, n}), y(type, {m, n});
        a.randomize(random);
        b.randomize(random, 2);
        device.matmul(
            {.a = a.view, .b = b.view, .c = c.view, .epilogue = Epilogue::gelu, .aux = aux.view});
        device.gelu_forward(aux.view, y.view);
        CHECK(y.bytes() == c.bytes());
      }
    }
  });
}

TEST_CASE("gelu of an element does not depend on its place") {
  // Activations computed again may be cut in other ranges than those of the matmul.
  for (const Isa isa : isas_of_this_machine()) {
    const MatmulKernels& kernels = isa == Isa::avx512 ? avx512::kMatmulKernels
                                   : isa == Isa::avx2 ? avx2::kMatmulKernels
                                                      : base::kMatmulKernels;
    std::mt19937 random(2);
    const int64_t n = 1003;
    Held x(DType::f32, {n}), whole(DType::f32, {n}), single(DType::f32, {n});
    Held narrow(DType::bf16, {n}), narrow_whole(DType::bf16, {n}), narrow_single(DType::bf16, {n});
    x.randomize(random, 2);
    narrow.randomize(random, 2);
    kernels.gelu_f32(x.view.as<float>(), whole.view.as<float>(), n);
    kernels.gelu_bf16(narrow.view.as<uint16_t>(), narrow_whole.view.as<uint16_t>(), n);
    for (int64_t i = 0; i < n; ++i) {
      kernels.gelu_f32(x.view.as<float>() + i, single.view.as<float>() + i, 1);
      kernels.gelu_bf16(narrow.view.as<uint16_t>() + i, narrow_single.view.as<uint16_t>() + i, 1);
    }
    CHECK(single.bytes() == whole.bytes());
    CHECK(narrow_single.bytes() == narrow_whole.bytes());
  }
}

namespace {

double normal_integral(double x) {
  return 0.5 * std::erfc(-x / std::sqrt(2.0));
}
double gelu_exact_slope(double x) {
  return normal_integral(x) + x * std::exp(-x * x / 2) / std::sqrt(2 * 3.141592653589793);
}

}  // namespace

TEST_CASE("gelu_exact and its gradient against the reference") {
  for_each_device([](Device& device) {
    std::mt19937 random(7);
    for (const int64_t n : {1, 2, 15, 16, 17, 601, 70'001}) {
      for (const DType type : kComputeTypes) {
        INFO(n << " elements, type " << safetensors_name(type));
        Held x(type, {n}), y(type, {n}), dy(type, {n}), again(type, {n}), other(type, {n});
        x.randomize(random, 3);
        dy.randomize(random);
        std::vector<double> expected, slopes = dy.values();
        for (const double value : x.values()) expected.push_back(value * normal_integral(value));
        for (int64_t i = 0; i < n; ++i) {
          slopes[static_cast<size_t>(i)] *= gelu_exact_slope(x[i]);
        }
        device.copy(dy.view, other.view);
        device.gelu_exact_forward(x.view, y.view);
        device.gelu_exact_backward(dy.view, x.view, {});
        device.gelu_exact_backward(other.view, x.view, again.view);
        CHECK(again.bytes() == y.bytes());
        CHECK(other.bytes() == dy.bytes());
        // The integral to 2e-7, times x, and roundings. The tanh form is 5e-4 off.
        check_close(y, expected, 3e-6, "y");
        check_close(dy, slopes, 3e-6, "dy");
      }
    }
  });
}

TEST_CASE("gelu_exact far from 0 is its limit, with small tails to their last digits") {
  for_each_device([](Device& device) {
    const std::vector<double> at = {-1e30, -1000, -20, -14, -9, -6, -4, -2,   -0.0,
                                    0,     2,     4,   6,   9,  14, 20, 1000, 1e30};
    const auto n = static_cast<int64_t>(at.size());
    Held x(DType::f32, {n}), y(DType::f32, {n}), dy(DType::f32, {n}), again(DType::f32, {n});
    for (int64_t i = 0; i < n; ++i) x.set(i, at[static_cast<size_t>(i)]);
    device.fill(dy.view, 1);
    device.gelu_exact_forward(x.view, y.view);
    device.gelu_exact_backward(dy.view, x.view, again.view);
    CHECK(again.bytes() == y.bytes());
    for (int64_t i = 0; i < n; ++i) {
      const double value = x[i], exact = value * normal_integral(value);
      INFO("x " << value);
      // An exponential of -x^2 / 2 has as many units of the last place as that has.
      CHECK(std::abs(y[i] - exact) <= (2e-6 + 1e-7 * value * value) * std::abs(exact) + 1e-37);
      CHECK(std::abs(dy[i] - gelu_exact_slope(value)) <= 2e-6);
    }
  });
}

TEST_CASE("swiglu_forward against the reference") {
  for_each_device([](Device& device) {
    std::mt19937 random(3);
    for (const auto& [n, f] : kMatrices) {
      for (const DType type : kComputeTypes) {
        INFO(n << " x " << f << " type " << safetensors_name(type));
        Held x(type, {n, 2 * f}), y(type, {n, f});
        x.randomize(random, 1.5);
        device.swiglu_forward({.x = x.view, .y = y.view});
        // exp to 2e-7 and four roundings, of products below 50.
        check_close(y, swiglu(x.values(), f), 1e-5, "y");
      }
    }
  });
}

TEST_CASE("swiglu_backward against the reference") {
  for_each_device([](Device& device) {
    std::mt19937 random(4);
    for (const auto& [n, f] : kMatrices) {
      for (const DType type : kComputeTypes) {
        INFO(n << " x " << f << " type " << safetensors_name(type));
        Held x(type, {n, 2 * f}), dy(type, {n, f}), dx(type, {n, 2 * f});
        x.randomize(random);
        dy.randomize(random);
        device.swiglu_backward({.dy = dy.view, .x = x.view, .dx = dx.view});
        check_close(dx, swiglu_gradient(dy.values(), x.values(), f), 1e-5, "dx");
      }
    }
  });
}

TEST_CASE("swiglu_backward writes what the forward op does, to the bit, and the same gradient") {
  for_each_device([](Device& device) {
    std::mt19937 random(14);
    for (const auto& [n, f] : kMatrices) {
      for (const DType type : kComputeTypes) {
        INFO(n << " x " << f << " type " << safetensors_name(type));
        Held x(type, {n, 2 * f}), y(type, {n, f}), again(type, {n, f}), dy(type, {n, f});
        Held dx(type, {n, 2 * f}), dx_alone(type, {n, 2 * f});
        x.randomize(random, 4);
        x.set(0, -1e4);
        dy.randomize(random);
        device.swiglu_forward({.x = x.view, .y = y.view});
        device.swiglu_backward({.dy = dy.view, .x = x.view, .dx = dx_alone.view});
        device.swiglu_backward({.dy = dy.view, .x = x.view, .dx = dx.view, .y = again.view});
        CHECK(again.bytes() == y.bytes());
        CHECK(dx.bytes() == dx_alone.bytes());
      }
    }
  });
}

TEST_CASE("swiglu_backward of rows with weights against the reference") {
  for_each_device([](Device& device) {
    std::mt19937 random(24);
    for (const auto& [n, f] : kMatrices) {
      for (const DType type : kComputeTypes) {
        INFO(n << " x " << f << " type " << safetensors_name(type));
        Held x(type, {n, 2 * f}), y(type, {n, f}), again(type, {n, f}), dy(type, {n, f});
        Held dx(type, {n, 2 * f}), dx_alone(type, {n, 2 * f}), index(DType::i32, {n});
        // Of more weights than there are rows; the others' gradients stay.
        Held weights(DType::f32, {n + 3}), dweights(DType::f32, {n + 3}, 0);
        x.randomize(random);
        dy.randomize(random);
        weights.randomize(random);
        device.fill(dweights.view, 7);
        for (int64_t i = 0; i < n; ++i) index.set(i, static_cast<double>(n + 1 - i));
        std::vector<double> weighed = dy.values();
        std::vector<double> dots(static_cast<size_t>(n + 3), 7);
        const std::vector<double> made = swiglu(x.values(), f);
        for (int64_t i = 0; i < n; ++i) {
          const auto w = static_cast<int64_t>(index[i]);
          double& dot = dots[static_cast<size_t>(w)] = 0;
          for (auto at = static_cast<size_t>(i * f); at < static_cast<size_t>((i + 1) * f); ++at) {
            dot += made[at] * weighed[at];
            weighed[at] *= weights[w];
          }
        }
        SwigluBackward args = {
            .dy = dy.view,
            .x = x.view,
            .dx = dx_alone.view,
            .rows = {.index = index.view, .weights = weights.view, .dweights = dweights.view}};
        const double bound = 2e-5 * std::sqrt(static_cast<double>(f));
        device.swiglu_backward(args);
        check_close(dx_alone, swiglu_gradient(weighed, x.values(), f), 1e-5, "dx");
        check_close(dweights, dots, bound, "dweights");
        const std::vector<uint8_t> alone = dweights.bytes();
        args.dx = dx.view;
        args.y = again.view;
        device.swiglu_forward({.x = x.view, .y = y.view});
        device.swiglu_backward(args);
        CHECK(again.bytes() == y.bytes());
        CHECK(dx.bytes() == dx_alone.bytes());
        CHECK(dweights.bytes() == alone);
      }
    }
  });
}

TEST_CASE("swiglu_backward is the finite difference of the forward op") {
  for_each_device([](Device& device) {
    std::mt19937 random(5);
    const int64_t n = 3, f = 19;
    Held x(DType::f32, {n, 2 * f}), dy(DType::f32, {n, f}), dx(DType::f32, {n, 2 * f});
    Held y(DType::f32, {n, f});
    x.randomize(random);
    dy.randomize(random);
    device.swiglu_backward({.dy = dy.view, .x = x.view, .dx = dx.view});
    const auto loss = [&] {
      device.swiglu_forward({.x = x.view, .y = y.view});
      double sum = 0;
      for (int64_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
      return sum;
    };
    std::vector<double> expected;
    for (int64_t i = 0; i < x.size(); ++i) {
      const double at = x[i];
      x.set(i, at + 0.0078125);
      const double above = x[i], up = loss();
      x.set(i, at - 0.0078125);
      const double below = x[i], down = loss();
      x.set(i, at);
      expected.push_back((up - down) / (above - below));
    }
    // The third derivative of silu is below 0.5: h^2/6 of it is 1e-5 times |dy up| < 10; and f32
    // values over a width of 2^-6.
    check_close(dx, expected, 2e-4, "dx");
  });
}

TEST_CASE("swiglu of large gates is their limit") {
  for_each_device([](Device& device) {
    const std::vector<double> gates = {-1e30, -1000, -100, -89, -87, -50,  -20, 0,
                                       20,    50,    87,   89,  100, 1000, 1e30};
    const auto f = static_cast<int64_t>(gates.size());
    Held x(DType::f32, {1, 2 * f}), dy(DType::f32, {1, f}), y(DType::f32, {1, f});
    Held dx(DType::f32, {1, 2 * f}), again(DType::f32, {1, f});
    device.fill(x.view, 0.5f);
    device.fill(dy.view, 2);
    for (int64_t i = 0; i < f; ++i) x.set(i, gates[static_cast<size_t>(i)]);
    device.swiglu_forward({.x = x.view, .y = y.view});
    device.swiglu_backward({.dy = dy.view, .x = x.view, .dx = dx.view, .y = again.view});
    CHECK(again.bytes() == y.bytes());
    for (int64_t i = 0; i < f; ++i) {
      const double gate = x[i], sigmoid = 1 / (1 + std::exp(-gate));
      const double slope = sigmoid + gate * sigmoid * (1 - sigmoid);
      INFO("gate " << gate);
      const double bound = 1e-6 + 1e-6 * std::abs(gate);
      CHECK(std::abs(y[i] - 0.5 * gate * sigmoid) <= (gate < 0 ? 1e-6 : bound));
      CHECK(std::abs(dx[i] - (gate < -700 ? 0 : slope)) <= 1e-6);
      CHECK(std::abs(dx[f + i] - 2 * gate * sigmoid) <= (gate < 0 ? 1e-6 : 2 * bound));
    }
  });
}

namespace {

double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.141592653589793) * (x + 0.044715 * x * x * x)));
}
double gelu_tanh_slope(double x) {
  const double root = std::sqrt(2 / 3.141592653589793);
  const double tanh = std::tanh(root * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * root * (1 + 3 * 0.044715 * x * x);
}

}  // namespace

TEST_CASE("geglu and its gradient against the reference, and backward writes what forward does") {
  for_each_device([](Device& device) {
    std::mt19937 random(15);
    for (const auto& [n, f] : kMatrices) {
      for (const DType type : kComputeTypes) {
        INFO(n << " x " << f << " type " << safetensors_name(type));
        Held x(type, {n, 2 * f}), y(type, {n, f}), again(type, {n, f}), dy(type, {n, f});
        Held dx(type, {n, 2 * f}), dx_alone(type, {n, 2 * f});
        x.randomize(random, 1.5);
        dy.randomize(random);
        std::vector<double> made, gradient(static_cast<size_t>(2 * n * f));
        for (int64_t i = 0; i < n * f; ++i) {
          const int64_t gate = i / f * 2 * f + i % f, up = gate + f;
          made.push_back(gelu_tanh(x[gate]) * x[up]);
          gradient[static_cast<size_t>(gate)] = dy[i] * x[up] * gelu_tanh_slope(x[gate]);
          gradient[static_cast<size_t>(up)] = dy[i] * gelu_tanh(x[gate]);
        }
        device.swiglu_forward({.x = x.view, .y = y.view, .unit = {.gate = GateForm::gelu_tanh}});
        device.swiglu_backward({.dy = dy.view,
                                .x = x.view,
                                .dx = dx_alone.view,
                                .unit = {.gate = GateForm::gelu_tanh}});
        device.swiglu_backward({.dy = dy.view,
                                .x = x.view,
                                .dx = dx.view,
                                .y = again.view,
                                .unit = {.gate = GateForm::gelu_tanh}});
        check_close(y, made, 1e-5, "y");
        check_close(dx, gradient, 1e-5, "dx");
        CHECK(again.bytes() == y.bytes());
        CHECK(dx.bytes() == dx_alone.bytes());
      }
    }
  });
}

TEST_CASE("geglu of large gates is its limit") {
  for_each_device([](Device& device) {
    const std::vector<double> gates = {-1e30, -1000, -100, -20, -10,  -4,  0,
                                       4,     10,    20,   100, 1000, 1e30};
    const auto f = static_cast<int64_t>(gates.size());
    Held x(DType::f32, {1, 2 * f}), dy(DType::f32, {1, f}), y(DType::f32, {1, f});
    Held dx(DType::f32, {1, 2 * f});
    device.fill(x.view, 0.5f);
    device.fill(dy.view, 2);
    for (int64_t i = 0; i < f; ++i) x.set(i, gates[static_cast<size_t>(i)]);
    device.swiglu_forward({.x = x.view, .y = y.view, .unit = {.gate = GateForm::gelu_tanh}});
    device.swiglu_backward(
        {.dy = dy.view, .x = x.view, .dx = dx.view, .unit = {.gate = GateForm::gelu_tanh}});
    for (int64_t i = 0; i < f; ++i) {
      const double gate = x[i];
      const double value = gate < -50 ? 0 : gate > 50 ? gate : gelu_tanh(gate);
      const double slope = gate < -50 ? 0 : gate > 50 ? 1 : gelu_tanh_slope(gate);
      INFO("gate " << gate);
      CHECK(std::abs(y[i] - 0.5 * value) <= 1e-6 + 1e-6 * value);
      CHECK(std::abs(dx[i] - slope) <= 2e-6);
      CHECK(std::abs(dx[f + i] - 2 * value) <= 1e-6 + 2e-6 * value);
    }
  });
}

}  // namespace mtl::test
