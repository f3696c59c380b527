// LayerNorm and RMS norm (a LayerNorm without mean) against a double-precision reference and finite
// differences.
#include "runtime/device/norm_reference.h"
#include "runtime/device/ops_test.h"

namespace mtl::test {

namespace {

struct Shape {
  int64_t rows, cols;
  double mean;
};
const Shape kShapes[] = {{1, 1, 0},    {1, 7, 0},    {5, 2, 0},     {3, 16, 1},  {5, 17, 0},
                         {33, 64, -2}, {31, 65, 30}, {129, 768, 0}, {2, 1000, 0}};

// body(shape, type, flag) for all of them.
template <class Body>
void for_each_case(Body body) {
  for (const Shape& shape : kShapes) {
    for (const DType type : kComputeTypes) {
      for (const bool flag : {false, true}) {
        INFO(shape.rows << " x " << shape.cols << " type " << safetensors_name(type));
        body(shape, type, flag);
      }
    }
  }
}

// How far f32 may be off, relative to values of order 1.
struct ForwardBounds {
  double y, mean, rstd;
};
ForwardBounds forward_bounds(Norm norm, const Shape& shape) {
  // Without a mean there is no cancellation: a few roundings of values below 10.
  if (norm == Norm::rms) return {2e-6, 0, 1e-6};
  // The f32 mean is off by about 2^-24 of |mean|, times rstd (at most 300, where two columns are
  // nearly equal; then x - mean is what is left of a cancellation).
  const double size = 1 + std::abs(shape.mean);
  return {size * (shape.cols <= 2 ? 1e-4 : 2e-6), 1e-6 * size, shape.cols <= 2 ? 1e-3 : 2e-6};
}

void check_forward(Device& device, Norm norm, float eps) {
  std::mt19937 random(1);
  for_each_case([&](const Shape& shape, DType type, bool with_beta) {
    Held x(type, {shape.rows, shape.cols}), y(type, {shape.rows, shape.cols});
    Held gamma(type, {shape.cols}), beta(type, {shape.cols});
    Held mean(DType::f32, {shape.rows}), rstd(DType::f32, {shape.rows});
    x.randomize(random, 1, shape.mean);
    gamma.randomize(random, 0.2, 1);
    beta.randomize(random, 0.2);
    device.layernorm_forward({.x = x.view,
                              .gamma = gamma.view,
                              .beta = with_beta ? beta.view : Tensor{},
                              .y = y.view,
                              .mean = norm == Norm::layer ? mean.view : Tensor{},
                              .rstd = rstd.view,
                              .eps = eps});
    const std::vector<double> xs = x.values();
    const ForwardBounds bounds = forward_bounds(norm, shape);
    check_close(
        y,
        norm_forward(norm, xs, gamma.values(), with_beta ? beta.values() : std::vector<double>{},
                     static_cast<double>(eps)),
        bounds.y, "y");
    const auto cols = static_cast<size_t>(shape.cols);
    for (int64_t r = 0; r < shape.rows; ++r) {
      const NormRow row =
          norm_row(norm, xs.data() + static_cast<size_t>(r) * cols, cols, static_cast<double>(eps));
      if (norm == Norm::layer) CHECK(std::abs(mean[r] - row.mean) <= bounds.mean);
      CHECK(std::abs(rstd[r] / row.rstd - 1) <= bounds.rstd);
    }
  });
}

void check_backward(Device& device, Norm norm, double eps) {
  std::mt19937 random(2);
  for_each_case([&](const Shape& shape, DType type, bool add) {
    // rstd of a LayerNorm is ill-conditioned there; finite differences cover it.
    if (norm == Norm::layer && shape.cols <= 2) return;
    const int64_t rows = shape.rows, cols = shape.cols;
    Held x(type, {rows, cols}), dy(type, {rows, cols}), dx(type, {rows, cols});
    Held gamma(type, {cols}), mean(DType::f32, {rows}), rstd(DType::f32, {rows});
    Held dgamma(DType::f32, {cols}), dbeta(DType::f32, {cols});
    x.randomize(random, 1, shape.mean);
    dy.randomize(random);
    dx.randomize(random);
    gamma.randomize(random, 0.2, 1);
    dgamma.randomize(random);
    dbeta.randomize(random);
    const std::vector<double> xs = x.values();
    for (int64_t r = 0; r < rows; ++r) {
      const NormRow row = norm_row(norm, xs.data() + r * cols, static_cast<size_t>(cols), eps);
      mean.set(r, row.mean);
      rstd.set(r, row.rstd);
    }
    NormGradients expected = norm_backward(norm, xs, dy.values(), gamma.values(), eps);
    if (add) {
      expected = {.dx = added(expected.dx, dx.values()),
                  .dgamma = added(expected.dgamma, dgamma.values()),
                  .dbeta = added(expected.dbeta, dbeta.values())};
    }
    const bool with_dbeta = add;
    device.layernorm_backward({.dy = dy.view,
                               .x = x.view,
                               .gamma = gamma.view,
                               .mean = norm == Norm::layer ? mean.view : Tensor{},
                               .rstd = rstd.view,
                               .dx = dx.view,
                               .dgamma = dgamma.view,
                               .dbeta = with_dbeta ? dbeta.view : Tensor{},
                               .add_to_dx = add,
                               .accumulate = add});
    // About ten f32 roundings of values of order 1 (more where a large mean is subtracted); sums
    // over the rows grow like their square root.
    const double error = 5e-6 * (norm == Norm::layer ? 1 + std::abs(shape.mean) : 1);
    const double sum_error = error * std::sqrt(static_cast<double>(rows));
    check_close(dx, expected.dx, error, "dx");
    check_close(dgamma, expected.dgamma, sum_error, "dgamma");
    if (with_dbeta) check_close(dbeta, expected.dbeta, sum_error, "dbeta");
  });
}

void check_differences(Device& device, Norm norm) {
  std::mt19937 random(3);
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1}, {2, 3}, {3, 19}}) {
    Held x(DType::f32, {rows, cols}), dy(DType::f32, {rows, cols}), y(DType::f32, {rows, cols});
    Held gamma(DType::f32, {cols}), beta(DType::f32, {cols});
    Held mean(DType::f32, {rows}), rstd(DType::f32, {rows}), dx(DType::f32, {rows, cols});
    Held dgamma(DType::f32, {cols}), dbeta(DType::f32, {cols});
    x.randomize(random);
    dy.randomize(random);
    gamma.randomize(random);
    beta.randomize(random);
    const bool layer = norm == Norm::layer;
    const float eps = 0.1f;  // large, so that the single column has a derivative to speak of
    device.layernorm_forward({.x = x.view,
                              .gamma = gamma.view,
                              .beta = layer ? beta.view : Tensor{},
                              .y = y.view,
                              .mean = layer ? mean.view : Tensor{},
                              .rstd = rstd.view,
                              .eps = eps});
    device.layernorm_backward({.dy = dy.view,
                               .x = x.view,
                               .gamma = gamma.view,
                               .mean = layer ? mean.view : Tensor{},
                               .rstd = rstd.view,
                               .dx = dx.view,
                               .dgamma = dgamma.view,
                               .dbeta = layer ? dbeta.view : Tensor{}});
    std::vector<double> xs = x.values(), gs = gamma.values(), bs = beta.values();
    const auto outputs = [&] {
      return norm_forward(norm, xs, gs, layer ? bs : std::vector<double>{},
                          static_cast<double>(eps));
    };
    const std::vector<double> weights = dy.values();
    // A few 2^-24 of values below 10.
    check_close(dx, derivatives(xs, weights, outputs), 5e-6, "dx");
    check_close(dgamma, derivatives(gs, weights, outputs), 5e-6, "dgamma");
    if (layer) check_close(dbeta, derivatives(bs, weights, outputs), 5e-6, "dbeta");
  }
}

}  // namespace

TEST_CASE("layernorm_forward against the reference") {
  for_each_device([](Device& device) { check_forward(device, Norm::layer, 1e-5f); });
}

TEST_CASE("RMS norm forward against the reference") {
  for_each_device([](Device& device) { check_forward(device, Norm::rms, 1e-6f); });
}

TEST_CASE("layernorm keeps its accuracy far from zero") {
  // Values 4096 +- 1: the sum of squares minus the squared mean would have no digit left in f32.
  for_each_device([](Device& device) {
    std::mt19937 random(5);
    Held x(DType::f32, {4, 768}), y(DType::f32, {4, 768}), gamma(DType::f32, {768});
    Held mean(DType::f32, {4}), rstd(DType::f32, {4});
    x.randomize(random, 1, 4096);
    device.fill(gamma.view, 1);
    device.layernorm_forward({.x = x.view,
                              .gamma = gamma.view,
                              .beta = {},
                              .y = y.view,
                              .mean = mean.view,
                              .rstd = rstd.view});
    // The mean itself has 12 bits after the point: 2^-12, less by averaging; rstd about 1.
    check_close(y, norm_forward(Norm::layer, x.values(), gamma.values(), {}, 1e-5), 1e-3, "y");
  });
}

TEST_CASE("layernorm_backward against the formulas in double precision") {
  for_each_device([](Device& device) { check_backward(device, Norm::layer, 1e-5); });
}

TEST_CASE("RMS norm backward against the formulas in double precision") {
  for_each_device([](Device& device) { check_backward(device, Norm::rms, 0.1); });
}

TEST_CASE("layernorm_backward is the finite difference of the forward reference") {
  for_each_device([](Device& device) { check_differences(device, Norm::layer); });
}

TEST_CASE("RMS norm backward is the finite difference of the forward reference") {
  for_each_device([](Device& device) { check_differences(device, Norm::rms); });
}

namespace {

// Bit for bit what bias_dropout_add() and layernorm_forward() give.
void check_add_norm(Device& device, DType type, int64_t rows, int64_t cols, float probability) {
  std::mt19937 random(static_cast<unsigned>(rows * 31 + cols));
  const Dropout dropout = dropout_in_test_memory(probability, 7, 52 * cols);
  for (const bool plain : {true, false}) {  // LayerNorm with biases, or RMS norm without
    INFO(rows << " x " << cols << " type " << safetensors_name(type) << " p " << probability
              << " plain " << plain);
    Held x(type, {rows, cols}), bias(type, {cols}), residual(type, {rows, cols});
    Held out(type, {rows, cols}), gamma(type, {cols}), beta(type, {cols}), y(type, {rows, cols});
    Held mean(DType::f32, {rows}), rstd(DType::f32, {rows}), amax(DType::f32, {1});
    for (Held* held : {&x, &bias, &residual, &gamma, &beta}) held->randomize(random);
    const ResidualAdd add = {.x = x.view,
                             .bias = plain ? bias.view : Tensor{},
                             .residual = residual.view,
                             .out = out.view,
                             .dropout = dropout,
                             .first_row = 11,
                             .scale = plain ? 1.0f : 0.22f};
    const LayerNorm norm = {.x = out.view,
                            .gamma = gamma.view,
                            .beta = plain ? beta.view : Tensor{},
                            .y = y.view,
                            .mean = plain ? mean.view : Tensor{},
                            .rstd = rstd.view,
                            .amax = amax.view};
    amax.set(0, 0);
    device.bias_dropout_add(add);
    device.layernorm_forward(norm);
    std::vector<std::vector<double>> expected;
    for (const Held* held : {&out, &y, &mean, &rstd, &amax}) expected.push_back(held->values());
    for (Held* held : {&out, &y, &mean, &rstd}) device.fill(held->view, 77);
    amax.set(0, 0);
    device.add_norm_forward(add, norm);
    CHECK(out.values() == expected[0]);
    CHECK(y.values() == expected[1]);
    if (plain) CHECK(mean.values() == expected[2]);
    CHECK(rstd.values() == expected[3]);
    CHECK(amax.values() == expected[4]);
  }
}

void check_add_norms() {
  for_each_device([](Device& device) {
    // Lanes without a pack; whole warps; rows of two packs a thread; more than registers hold.
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1},
                                     {5, 7},
                                     {70, 24},
                                     {33, 768},
                                     {9, 1032},
                                     {13, 1600},
                                     {2, 8192},
                                     {2, 9000}}) {
      for (const DType type : kComputeTypes) {
        for (const float probability : {0.0f, 0.3f}) {
          check_add_norm(device, type, rows, cols, probability);
        }
      }
    }
  });
}

}  // namespace

TEST_CASE("a residual addition and the norm behind it at once are the two") {
  check_add_norms();
}

TEST_CASE("a residual addition and the norm behind it at once are the two: aligned tensors") {
  const AlignedTensors aligned;
  check_add_norms();
}

}  // namespace mtl::test
