// RMS normalisation (a LayerNorm without mean) against a double-precision reference and finite
// differences.
#include "runtime/device/ops_test.h"

namespace mtl::test {

namespace {

double rstd_of(const double* x, size_t cols, double eps) {
  double squares = 0;
  for (size_t i = 0; i < cols; ++i) squares += x[i] * x[i];
  return 1 / std::sqrt(squares / static_cast<double>(cols) + eps);
}

std::vector<double> rms_forward(const std::vector<double>& x, const std::vector<double>& gamma,
                                const std::vector<double>& beta, double eps) {
  std::vector<double> y;
  for (size_t at = 0; at < x.size(); at += gamma.size()) {
    const double rstd = rstd_of(x.data() + at, gamma.size(), eps);
    for (size_t i = 0; i < gamma.size(); ++i) {
      y.push_back(x[at + i] * rstd * gamma[i] + (beta.empty() ? 0 : beta[i]));
    }
  }
  return y;
}

struct RmsShape {
  int64_t rows, cols;
  double mean;
};
const RmsShape kRmsShapes[] = {{1, 1, 0},    {1, 7, 0},    {5, 2, 0},     {3, 16, 1},  {5, 17, 0},
                               {33, 64, -2}, {31, 65, 30}, {129, 768, 0}, {2, 1000, 0}};

}  // namespace

TEST_CASE("RMS norm forward against the reference") {
  for_each_device([](Device& device) {
    std::mt19937 random(1);
    for (const RmsShape& shape : kRmsShapes) {
      for (const DType type : kComputeTypes) {
        for (const bool with_beta : {false, true}) {
          INFO(shape.rows << " x " << shape.cols << " type " << safetensors_name(type));
          Held x(type, {shape.rows, shape.cols}), y(type, {shape.rows, shape.cols});
          Held gamma(type, {shape.cols}), beta(type, {shape.cols}), rstd(DType::f32, {shape.rows});
          x.randomize(random, 1, shape.mean);
          gamma.randomize(random, 0.2, 1);
          beta.randomize(random, 0.2);
          const double eps = static_cast<double>(1e-6f);
          device.layernorm_forward({.x = x.view,
                                    .gamma = gamma.view,
                                    .beta = with_beta ? beta.view : Tensor{},
                                    .y = y.view,
                                    .mean = {},
                                    .rstd = rstd.view,
                                    .eps = 1e-6f});
          // Without a mean there is no cancellation: a few roundings of values below 10.
          const std::vector<double> xs = x.values();
          check_close(y,
                      rms_forward(xs, gamma.values(),
                                  with_beta ? beta.values() : std::vector<double>{}, eps),
                      2e-6, "y");
          const auto cols = static_cast<size_t>(shape.cols);
          for (int64_t r = 0; r < shape.rows; ++r) {
            const double want = rstd_of(xs.data() + static_cast<size_t>(r) * cols, cols, eps);
            CHECK(std::abs(rstd[r] / want - 1) <= 1e-6);
          }
        }
      }
    }
  });
}

TEST_CASE("RMS norm backward against the formulas in double precision") {
  for_each_device([](Device& device) {
    std::mt19937 random(2);
    for (const RmsShape& shape : kRmsShapes) {
      for (const DType type : kComputeTypes) {
        for (const bool add : {false, true}) {
          INFO(shape.rows << " x " << shape.cols << " type " << safetensors_name(type));
          const int64_t rows = shape.rows, cols = shape.cols;
          Held x(type, {rows, cols}), dy(type, {rows, cols}), dx(type, {rows, cols});
          Held gamma(type, {cols}), rstd(DType::f32, {rows});
          Held dgamma(DType::f32, {cols}), dbeta(DType::f32, {cols});
          x.randomize(random, 1, shape.mean);
          dy.randomize(random);
          dx.randomize(random);
          gamma.randomize(random, 0.2, 1);
          dgamma.randomize(random);
          dbeta.randomize(random);
          const std::vector<double> xs = x.values();
          std::vector<double> expected_dx;
          std::vector<double> expected_dgamma(static_cast<size_t>(cols), 0.0);
          std::vector<double> expected_dbeta(static_cast<size_t>(cols), 0.0);
          if (add) {
            expected_dgamma = dgamma.values();
            expected_dbeta = dbeta.values();
          }
          for (int64_t r = 0; r < rows; ++r) {
            rstd.set(r, rstd_of(xs.data() + r * cols, static_cast<size_t>(cols), 0.1));
            double mean_gn = 0;
            for (int64_t c = 0; c < cols; ++c) {
              const double n = x[r * cols + c] * rstd[r];
              mean_gn += dy[r * cols + c] * gamma[c] * n / static_cast<double>(cols);
              expected_dgamma[static_cast<size_t>(c)] += dy[r * cols + c] * n;
              expected_dbeta[static_cast<size_t>(c)] += dy[r * cols + c];
            }
            for (int64_t c = 0; c < cols; ++c) {
              const double n = x[r * cols + c] * rstd[r], g = dy[r * cols + c] * gamma[c];
              expected_dx.push_back(rstd[r] * (g - n * mean_gn) + (add ? dx[r * cols + c] : 0));
            }
          }
          const bool with_dbeta = add;
          device.layernorm_backward({.dy = dy.view,
                                     .x = x.view,
                                     .gamma = gamma.view,
                                     .mean = {},
                                     .rstd = rstd.view,
                                     .dx = dx.view,
                                     .dgamma = dgamma.view,
                                     .dbeta = with_dbeta ? dbeta.view : Tensor{},
                                     .add_to_dx = add,
                                     .accumulate = add});
          // About ten f32 roundings of values of order 1; sums over the rows grow like their root.
          const double error = 5e-6, sum_error = error * std::sqrt(static_cast<double>(rows));
          check_close(dx, expected_dx, error, "dx");
          check_close(dgamma, expected_dgamma, sum_error, "dgamma");
          if (with_dbeta) check_close(dbeta, expected_dbeta, sum_error, "dbeta");
        }
      }
    }
  });
}

TEST_CASE("RMS norm backward is the finite difference of the forward reference") {
  for_each_device([](Device& device) {
    std::mt19937 random(3);
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1}, {2, 3}, {3, 19}}) {
      Held x(DType::f32, {rows, cols}), dy(DType::f32, {rows, cols}), y(DType::f32, {rows, cols});
      Held gamma(DType::f32, {cols}), rstd(DType::f32, {rows}), dx(DType::f32, {rows, cols});
      Held dgamma(DType::f32, {cols});
      x.randomize(random);
      dy.randomize(random);
      gamma.randomize(random);
      const float eps = 0.1f;  // large, so that the single column has a derivative to speak of
      device.layernorm_forward({.x = x.view,
                                .gamma = gamma.view,
                                .beta = {},
                                .y = y.view,
                                .mean = {},
                                .rstd = rstd.view,
                                .eps = eps});
      device.layernorm_backward({.dy = dy.view,
                                 .x = x.view,
                                 .gamma = gamma.view,
                                 .mean = {},
                                 .rstd = rstd.view,
                                 .dx = dx.view,
                                 .dgamma = dgamma.view,
                                 .dbeta = {}});
      std::vector<double> xs = x.values(), gammas = gamma.values();
      const std::vector<double> weights = dy.values();
      const auto derivatives = [&](std::vector<double>& at) {
        const auto loss = [&] {
          const std::vector<double> ys = rms_forward(xs, gammas, {}, static_cast<double>(eps));
          double sum = 0;
          for (size_t i = 0; i < ys.size(); ++i) sum += ys[i] * weights[i];
          return sum;
        };
        std::vector<double> result;
        for (double& value : at) {
          const double saved = value, h = 1e-5;
          value = saved + h;
          const double up = loss();
          value = saved - h;
          result.push_back((up - loss()) / (2 * h));
          value = saved;
        }
        return result;
      };
      // Central differences are good to 1e-8 here; f32 to a few 2^-24 of values below 10.
      check_close(dx, derivatives(xs), 5e-6, "dx");
      check_close(dgamma, derivatives(gammas), 5e-6, "dgamma");
    }
  });
}

}  // namespace mtl::test
