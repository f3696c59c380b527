#include "support/lt_product.h"

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/float8.h"
#include "common/half.h"
#include "support/gelu.h"

namespace mtl::test {

namespace {

using cuda::LtEpilogue;
using cuda::LtGemm;
using cuda::LtOperands;

double value_at(DType dtype, const void* data, int64_t i) {
  const auto at = static_cast<size_t>(i);
  switch (dtype) {
    case DType::bf16:
      return static_cast<double>(bf16_to_f32(static_cast<const uint16_t*>(data)[at]));
    case DType::f16:
      return static_cast<double>(f16_to_f32(static_cast<const uint16_t*>(data)[at]));
    case DType::f8_e4m3:
      return static_cast<double>(e4m3_to_f32(static_cast<const uint8_t*>(data)[at]));
    case DType::f8_e5m2:
      return static_cast<double>(e5m2_to_f32(static_cast<const uint8_t*>(data)[at]));
    default:
      return static_cast<double>(static_cast<const float*>(data)[at]);
  }
}
void store_at(DType dtype, void* data, int64_t i, double value) {
  const auto at = static_cast<size_t>(i);
  const auto x = static_cast<float>(value);
  switch (dtype) {
    case DType::bf16:
      static_cast<uint16_t*>(data)[at] = f32_to_bf16(x);
      break;
    case DType::f16:
      static_cast<uint16_t*>(data)[at] = f32_to_f16(x);
      break;
    default:
      static_cast<float*>(data)[at] = x;
  }
}

void must(bool holds, const char* what) {
  if (!holds) throw std::logic_error(std::string("cuBLASLt would refuse a product: ") + what);
}

void check(const LtGemm& g, const LtOperands& operands, bool with_bias, bool with_aux) {
  must(with_bias == (operands.bias != nullptr), "a bias is missing, or there for nothing");
  must(with_aux == (operands.aux != nullptr), "aux is missing, or there for nothing");
  must(g.ld_first >= (g.transpose_first ? g.k : g.rows) &&
           g.ld_second >= (g.transpose_second ? g.columns : g.k) && g.ld_result >= g.rows,
       "a leading dimension");
  if (is_float8(g.first_type)) {
    must(g.transpose_first && !g.transpose_second, "FP8 has the form TN alone");
    must(is_float8(g.second_type) &&
             (g.first_type == DType::f8_e4m3 || g.second_type == DType::f8_e4m3),
         "two operands of E5M2");
    for (const int64_t of16 : {g.rows, g.k, g.ld_first, g.ld_second}) {
      must(of16 % 16 == 0, "rows of FP8 that are no multiples of 16 bytes");
    }
    must(g.result_type == DType::bf16 || g.result_type == DType::f32, "FP8's result");
    must(operands.scale_first != nullptr && operands.scale_second != nullptr, "FP8's scales");
  } else {
    must(g.first_type == g.second_type, "operands of two types");
    must(g.result_type == g.first_type || g.result_type == DType::f32, "the result's type");
    must(operands.scale_first == nullptr && !g.fast_sums, "what only FP8 has");
  }
  if (with_bias) {
    must(g.bias_type == g.result_type, "the bias's type");
    must(!is_float8(g.first_type) || g.bias_type == DType::bf16, "the bias's type with FP8");
  }
  if (with_aux) must(g.ld_aux % 8 == 0 && g.ld_aux >= g.rows && !g.add, "aux");
}

// op(operand) in rows of k elements.
std::vector<double> rows_of(DType dtype, const void* data, int64_t rows, int64_t k, int64_t ld,
                            bool k_is_contiguous) {
  std::vector<double> values;
  values.reserve(static_cast<size_t>(rows * k));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t p = 0; p < k; ++p) {
      // Element [i, j] of a column-major matrix is at i + j * ld.
      values.push_back(value_at(dtype, data, k_is_contiguous ? p + row * ld : row + p * ld));
    }
  }
  return values;
}

// Matrices of nothing: what a program measures how fast a GPU is with, thousands in size.
bool is_zero(const LtGemm& g, const void* first) {
  const int64_t stored = (g.transpose_first ? g.rows : g.k) - 1;
  const int64_t contiguous = g.transpose_first ? g.k : g.rows;
  const auto bytes =
      static_cast<size_t>((stored * g.ld_first + contiguous) * bytes_of(g.first_type));
  const auto* const data = static_cast<const char*>(first);
  return data[0] == 0 && std::memcmp(data, data + 1, bytes - 1) == 0;
}

}  // namespace

void multiply(const LtGemm& g, const LtOperands& operands) {
  const auto& [first, second, result, bias, aux, scale_first, scale_second] = operands;
  const bool gelu_aux =
      g.epilogue == LtEpilogue::gelu_aux || g.epilogue == LtEpilogue::gelu_aux_bias;
  const bool with_bias = g.epilogue == LtEpilogue::bias || g.epilogue == LtEpilogue::gelu_aux_bias;
  const bool with_aux = gelu_aux || g.epilogue == LtEpilogue::dgelu;
  const bool sums_first = g.epilogue == LtEpilogue::sums_of_first;
  const bool sums = sums_first || g.epilogue == LtEpilogue::sums_of_second;
  check(g, operands, with_bias || sums, with_aux);
  if (g.epilogue == LtEpilogue::none && !g.add && g.ld_result == g.rows &&
      !is_float8(g.first_type) && is_zero(g, first)) {
    std::memset(result, 0, static_cast<size_t>(g.rows * g.columns * bytes_of(g.result_type)));
    return;
  }
  double scale = 1;
  if (scale_first != nullptr) {
    scale = value_at(DType::f32, scale_first, 0) * value_at(DType::f32, scale_second, 0);
  }
  const auto a = rows_of(g.first_type, first, g.rows, g.k, g.ld_first, g.transpose_first);
  const auto b = rows_of(g.second_type, second, g.columns, g.k, g.ld_second, !g.transpose_second);
  if (sums) {
    const std::vector<double>& summed = sums_first ? a : b;
    for (int64_t i = 0; i < (sums_first ? g.rows : g.columns); ++i) {
      double sum = 0;
      for (int64_t p = 0; p < g.k; ++p) sum += summed[static_cast<size_t>(i * g.k + p)];
      store_at(g.bias_type, const_cast<void*>(bias), i, sum);
    }
  }
  for (int64_t column = 0; column < g.columns; ++column) {
    for (int64_t row = 0; row < g.rows; ++row) {
      double sum = 0;
      const double* const left = a.data() + row * g.k;
      const double* const right = b.data() + column * g.k;
      for (int64_t p = 0; p < g.k; ++p) sum += left[p] * right[p];
      sum *= scale;
      const int64_t at = row + column * g.ld_result;
      if (g.add) sum += value_at(g.result_type, result, at);
      if (with_bias) sum += value_at(g.bias_type, bias, row);
      const int64_t aux_at = row + column * g.ld_aux;
      if (g.epilogue == LtEpilogue::dgelu) {
        sum *= gelu_slope(value_at(g.result_type, aux, aux_at), kHardwareTanh);
      } else if (gelu_aux) {
        store_at(g.result_type, aux, aux_at, sum);
        sum = gelu(sum, kHardwareTanh);  // not of what is rounded
      }
      store_at(g.result_type, result, at, sum);
    }
  }
}

}  // namespace mtl::test
