#include "runtime/engine/init.h"

#include <algorithm>
#include <cmath>

#include <Random123/philox.h>

namespace mtl {

namespace {

// FNV-1a: only has to tell the names of one model apart, and to be the same everywhere.
uint64_t hash_name(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (unsigned char c : name) hash = (hash ^ c) * 0x100000001b3ULL;
  return hash;
}

// Splitmix64's finaliser: spreads every bit of seed and name over the key.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

template <size_t N>
double polynomial(const double (&coefficients)[N], double x) {
  double value = coefficients[0];
  for (size_t i = 1; i < N; ++i) value = value * x + coefficients[i];
  return value;
}

}  // namespace

double inverse_normal(double p) {
  static constexpr double kA[] = {-3.969683028665376e+01, 2.209460984245205e+02,
                                  -2.759285104469687e+02, 1.383577518672690e+02,
                                  -3.066479806614716e+01, 2.506628277459239e+00};
  static constexpr double kB[] = {-5.447609879822406e+01, 1.615858368580409e+02,
                                  -1.556989798598866e+02, 6.680131188771972e+01,
                                  -1.328068155288572e+01, 1.0};
  static constexpr double kC[] = {-7.784894002430293e-03, -3.223964580411365e-01,
                                  -2.400758277161838e+00, -2.549732539343734e+00,
                                  4.374664141464968e+00,  2.938163982698783e+00};
  static constexpr double kD[] = {7.784695709041462e-03, 3.224671290700398e-01,
                                  2.445134137142996e+00, 3.754408661907416e+00, 1.0};
  constexpr double kTail = 0.02425;
  if (p < kTail || p > 1 - kTail) {
    const double q = std::sqrt(-2 * std::log(std::min(p, 1 - p)));
    const double x = polynomial(kC, q) / polynomial(kD, q);
    return p < kTail ? x : -x;
  }
  const double q = p - 0.5;
  const double r = q * q;
  return polynomial(kA, r) * q / polynomial(kB, r);
}

NormalStream::NormalStream(uint64_t seed, const std::string& name)
    : key_(mix(mix(seed) ^ hash_name(name))) {}

void NormalStream::fill(int64_t first, int64_t count, double std, float* out) const {
  const r123::Philox4x32 philox;
  const r123::Philox4x32::key_type key = {
      {static_cast<uint32_t>(key_), static_cast<uint32_t>(key_ >> 32)}};
  int64_t i = 0;
  while (i < count) {
    const auto counter = static_cast<uint64_t>(first + i) / 4;
    const auto words =
        philox({{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0}}, key);
    for (auto lane = static_cast<size_t>((first + i) % 4); lane < 4 && i < count; ++lane, ++i) {
      out[i] = static_cast<float>(std * inverse_normal((words[lane] + 0.5) * 0x1p-32));
    }
  }
}

void initialise(const ParamRow& row, const std::vector<int64_t>& local_shape,
                const std::vector<ParamRect>& rects, uint64_t seed, int64_t first, int64_t count,
                float* out) {
  // One or two dimensions: as rows x columns.
  const bool matrix = local_shape.size() == 2;
  const size_t column_axis = matrix ? 1 : 0;
  const int64_t global_cols = row.shape[column_axis];
  std::fill_n(out, count, 0.0f);
  const NormalStream stream(seed, row.name);
  for (const ParamRect& rect : rects) {
    const int64_t rows = matrix ? rect.extent[0] : 1;
    const int64_t cols = rect.extent[column_axis];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t local_row = matrix ? rect.local_offset[0] + r : 0;
      const int64_t global_row = matrix ? rect.global_offset[0] + r : 0;
      float* const to =
          out + local_row * local_shape[column_axis] + rect.local_offset[column_axis] - first;
      const int64_t index = global_row * global_cols + rect.global_offset[column_axis];
      switch (row.init) {
        case InitKind::normal:
          stream.fill(index, cols, row.init_std, to);
          break;
        case InitKind::zeros:
          break;
        case InitKind::ones:
          std::fill_n(to, cols, 1.0f);
          break;
      }
    }
  }
}

}  // namespace mtl
