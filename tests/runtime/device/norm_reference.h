// What the tests of norms compare with, in double precision: LayerNorm, RMS norm (the same without
// a mean), and derivatives by central differences.
#pragma once

#include <cmath>
#include <vector>

namespace mtl::test {

enum class Norm { layer, rms };

struct NormRow {
  double mean = 0, rstd = 0;
};
inline NormRow norm_row(Norm norm, const double* x, size_t cols, double eps) {
  NormRow row;
  for (size_t i = 0; i < cols && norm == Norm::layer; ++i) {
    row.mean += x[i] / static_cast<double>(cols);
  }
  double squares = 0;
  for (size_t i = 0; i < cols; ++i) squares += (x[i] - row.mean) * (x[i] - row.mean);
  row.rstd = 1 / std::sqrt(squares / static_cast<double>(cols) + eps);
  return row;
}

// Rows of gamma's size, one behind another. `beta`: empty = none.
inline std::vector<double> norm_forward(Norm norm, const std::vector<double>& x,
                                        const std::vector<double>& gamma,
                                        const std::vector<double>& beta, double eps) {
  std::vector<double> y;
  for (size_t at = 0; at < x.size(); at += gamma.size()) {
    const NormRow row = norm_row(norm, x.data() + at, gamma.size(), eps);
    for (size_t i = 0; i < gamma.size(); ++i) {
      y.push_back((x[at + i] - row.mean) * row.rstd * gamma[i] + (beta.empty() ? 0 : beta[i]));
    }
  }
  return y;
}

struct NormGradients {
  std::vector<double> dx, dgamma, dbeta;
};
// By the formulas.
inline NormGradients norm_backward(Norm norm, const std::vector<double>& x,
                                   const std::vector<double>& dy, const std::vector<double>& gamma,
                                   double eps) {
  const size_t cols = gamma.size();
  const std::vector<double> zeros(cols, 0.0);
  NormGradients result = {.dx = {}, .dgamma = zeros, .dbeta = zeros};
  for (size_t at = 0; at < x.size(); at += cols) {
    const NormRow row = norm_row(norm, x.data() + at, cols, eps);
    double mean_g = 0, mean_gn = 0;
    for (size_t i = 0; i < cols; ++i) {
      const double n = (x[at + i] - row.mean) * row.rstd, g = dy[at + i] * gamma[i];
      if (norm == Norm::layer) mean_g += g / static_cast<double>(cols);
      mean_gn += g * n / static_cast<double>(cols);
      result.dgamma[i] += dy[at + i] * n;
      result.dbeta[i] += dy[at + i];
    }
    for (size_t i = 0; i < cols; ++i) {
      const double n = (x[at + i] - row.mean) * row.rstd, g = dy[at + i] * gamma[i];
      result.dx.push_back(row.rstd * (g - mean_g - n * mean_gn));
    }
  }
  return result;
}

// Of the sum of weights * outputs() by each of `inputs`, which outputs() reads; to 1e-8 where
// values and slopes are of order 1.
template <class Outputs>
std::vector<double> derivatives(std::vector<double>& inputs, const std::vector<double>& weights,
                                Outputs outputs) {
  const auto sum = [&] {
    const std::vector<double> values = outputs();
    double total = 0;
    for (size_t i = 0; i < values.size(); ++i) total += values[i] * weights[i];
    return total;
  };
  constexpr double kStep = 1e-5;
  std::vector<double> result;
  for (double& value : inputs) {
    const double saved = value;
    value = saved + kStep;
    const double up = sum();
    value = saved - kStep;
    result.push_back((up - sum()) / (2 * kStep));
    value = saved;
  }
  return result;
}

inline std::vector<double> added(std::vector<double> a, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

}  // namespace mtl::test
