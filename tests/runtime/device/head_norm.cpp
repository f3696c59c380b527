// QK-norm against a double-precision reference and finite differences.
#include "runtime/device/norm_reference.h"
#include "runtime/device/ops_test.h"

namespace mtl::test {

namespace {

struct Case {
  int64_t rows, heads, dim, before, after, raw_after;  // columns before and after the heads
};
const Case kCases[] = {{1, 1, 1, 0, 0, 0},     {3, 2, 5, 3, 4, 0},      {5, 3, 16, 0, 48, 16},
                       {33, 2, 17, 34, 1, 2},  {40, 4, 64, 64, 0, 5},   {7, 1, 80, 0, 160, 0},
                       {150, 3, 128, 0, 1, 0}, {2, 12, 64, 768, 768, 0}};

// The columns of the heads out of rows, and rows with them replaced.
std::vector<double> heads_of(const Held& x, const Case& c) {
  std::vector<double> result;
  for (int64_t row = 0; row < c.rows; ++row) {
    for (int64_t i = 0; i < c.heads * c.dim; ++i) {
      result.push_back(x[row * x.view.cols() + c.before + i]);
    }
  }
  return result;
}
std::vector<double> replaced(std::vector<double> rows, int64_t cols, const Case& c,
                             const std::vector<double>& heads) {
  const int64_t width = c.heads * c.dim;
  for (size_t i = 0; i < heads.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    rows[static_cast<size_t>(at / width * cols + c.before + at % width)] = heads[i];
  }
  return rows;
}

}  // namespace

TEST_CASE("head_norm_forward norms its columns, keeps them raw and touches no others") {
  for_each_device([](Device& device) {
    std::mt19937 random(1);
    for (const Case& c : kCases) {
      for (const DType type : kComputeTypes) {
        INFO("rows " << c.rows << " heads " << c.heads << " of " << c.dim << " from column "
                     << c.before << " type " << safetensors_name(type));
        const int64_t cols = c.before + c.heads * c.dim + c.after;
        const int64_t raw_cols = c.before + c.heads * c.dim + c.raw_after;
        Held x(type, {c.rows, cols}), raw(type, {c.rows, raw_cols});
        Held gamma(type, {c.dim}), rstd(DType::f32, {c.rows, c.heads});
        x.randomize(random, 2);
        raw.randomize(random);
        gamma.randomize(random, 0.2, 1);
        const double eps = static_cast<double>(1e-3f);
        const std::vector<double> before = heads_of(x, c), gammas = gamma.values();
        const std::vector<double> expected =
            replaced(x.values(), cols, c, norm_forward(Norm::rms, before, gammas, {}, eps));
        const std::vector<double> expected_raw = replaced(raw.values(), raw_cols, c, before);
        device.head_norm_forward({.x = x.view,
                                  .raw = raw.view,
                                  .first_column = c.before,
                                  .heads = c.heads,
                                  .head_dim = c.dim,
                                  .gamma = gamma.view,
                                  .rstd = rstd.view,
                                  .eps = 1e-3f});
        check_close(x, expected, 5e-6, "x");  // a few roundings of numbers below 10
        CHECK(raw.values() == expected_raw);
        for (int64_t i = 0; i < rstd.size(); ++i) {
          const NormRow head =
              norm_row(Norm::rms, before.data() + i * c.dim, static_cast<size_t>(c.dim), eps);
          CHECK(std::abs(rstd[i] / head.rstd - 1) <= 1e-6);
        }
      }
    }
  });
}

TEST_CASE("head_norm_backward against the formulas in double precision") {
  for_each_device([](Device& device) {
    std::mt19937 random(2);
    for (const Case& c : kCases) {
      for (const DType type : kComputeTypes) {
        for (const bool accumulate : {false, true}) {
          INFO("rows " << c.rows << " heads " << c.heads << " of " << c.dim << " type "
                       << safetensors_name(type));
          const int64_t cols = c.before + c.heads * c.dim + c.after;
          const int64_t raw_cols = c.before + c.heads * c.dim + c.raw_after;
          Held dx(type, {c.rows, cols}), raw(type, {c.rows, raw_cols});
          Held gamma(type, {c.dim}), rstd(DType::f32, {c.rows, c.heads});
          Held dgamma(DType::f32, {c.dim});
          dx.randomize(random);
          raw.randomize(random);
          gamma.randomize(random, 0.2, 1);
          dgamma.randomize(random);
          const std::vector<double> x = heads_of(raw, c), dy = heads_of(dx, c);
          const auto dim = static_cast<size_t>(c.dim);
          NormGradients expected = norm_backward(Norm::rms, x, dy, gamma.values(), 0.1);
          if (accumulate) expected.dgamma = added(expected.dgamma, dgamma.values());
          for (int64_t i = 0; i < rstd.size(); ++i) {
            rstd.set(i, norm_row(Norm::rms, x.data() + i * c.dim, dim, 0.1).rstd);
          }
          const std::vector<double> expected_dx = replaced(dx.values(), cols, c, expected.dx);
          const std::vector<double> before = dx.values();
          device.head_norm_backward({.dx = dx.view,
                                     .raw = raw.view,
                                     .first_column = c.before,
                                     .heads = c.heads,
                                     .head_dim = c.dim,
                                     .gamma = gamma.view,
                                     .rstd = rstd.view,
                                     .dgamma = dgamma.view,
                                     .accumulate = accumulate});
          // A few f32 roundings of values below 20 each; the sums grow like a square root.
          check_close(dx, expected_dx, 5e-6, "dx");
          check_close(dgamma, expected.dgamma,
                      5e-6 * std::sqrt(static_cast<double>(c.rows * c.heads)), "dgamma");
          int64_t touched = 0;
          for (int64_t i = 0; i < dx.size(); ++i) {
            const int64_t column = i % cols - c.before;
            if (column >= 0 && column < c.heads * c.dim) continue;
            touched += dx[i] != before[static_cast<size_t>(i)];
          }
          CHECK(touched == 0);
        }
      }
    }
  });
}

TEST_CASE("head_norm_backward is the finite difference of the forward reference") {
  for_each_device([](Device& device) {
    std::mt19937 random(3);
    for (const Case& c :
         {Case{2, 2, 1, 0, 0, 0}, Case{3, 2, 7, 2, 3, 0}, Case{2, 3, 19, 1, 0, 4}}) {
      const int64_t cols = c.before + c.heads * c.dim + c.after;
      const int64_t raw_cols = c.before + c.heads * c.dim + c.raw_after;
      Held x(DType::f32, {c.rows, cols}), raw(DType::f32, {c.rows, raw_cols});
      Held dx(DType::f32, {c.rows, cols}), gamma(DType::f32, {c.dim});
      Held rstd(DType::f32, {c.rows, c.heads}), dgamma(DType::f32, {c.dim});
      x.randomize(random);
      dx.randomize(random);
      gamma.randomize(random);
      std::vector<double> xs = heads_of(x, c), gammas = gamma.values();
      const std::vector<double> weights = heads_of(dx, c), dx_before = dx.values();
      const float eps = 0.1f;  // large, so that a single column has a derivative to speak of
      device.head_norm_forward({.x = x.view,
                                .raw = raw.view,
                                .first_column = c.before,
                                .heads = c.heads,
                                .head_dim = c.dim,
                                .gamma = gamma.view,
                                .rstd = rstd.view,
                                .eps = eps});
      device.head_norm_backward({.dx = dx.view,
                                 .raw = raw.view,
                                 .first_column = c.before,
                                 .heads = c.heads,
                                 .head_dim = c.dim,
                                 .gamma = gamma.view,
                                 .rstd = rstd.view,
                                 .dgamma = dgamma.view});
      const auto outputs = [&] {
        return norm_forward(Norm::rms, xs, gammas, {}, static_cast<double>(eps));
      };
      // A few 2^-24 of values below 10.
      check_close(dx, replaced(dx_before, cols, c, derivatives(xs, weights, outputs)), 5e-6, "dx");
      check_close(dgamma, derivatives(gammas, weights, outputs), 5e-6, "dgamma");
    }
  });
}

}  // namespace mtl::test
