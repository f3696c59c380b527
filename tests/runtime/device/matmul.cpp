// Products of the CPU, or of the GPU under test, against a double-precision reference: every form,
// type and epilogue over awkward sizes.
#include "runtime/device/cpu/matmul.h"

#include <cmath>
#include <cstring>
#include <omp.h>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include "common/error.h"
#include "runtime/device/cpu/calibrate.h"
#include "runtime/device/cpu/isa.h"
#include "runtime/device/cpu/threads.h"
#include "runtime/device/device_under_test.h"
#include "runtime/device/ops_test.h"
#include "support/gelu.h"

namespace {

using mtl::DType;
using mtl::Epilogue;
using mtl::Matmul;
using mtl::Tensor;
using mtl::test::gelu;
using mtl::test::gelu_slope;

// On the CPU, or the GPU under test.
class Multiplier {
 public:
  void run(const Matmul& args) {
    if (gpu_ == nullptr) return cpu_.run(args);
    const mtl::test::OnGpu a(*gpu_, args.a), b(*gpu_, args.b), bias(*gpu_, args.bias),
        c(*gpu_, args.c), aux(*gpu_, args.aux);
    Matmul there = args;
    there.a = a.view;
    there.b = b.view;
    there.bias = bias.view;
    there.c = c.view;
    there.aux = aux.view;
    gpu_->matmul(there);
  }

 private:
  mtl::Device* gpu_ = mtl::test::gpu_under_test();
  mtl::CpuMatmul cpu_;
};

uint16_t to_half(DType type, double x) {
  const auto value = static_cast<float>(x);
  return type == DType::bf16 ? mtl::test::bf16_of_float(value) : mtl::test::f16_of_float(value);
}
double from_half(DType type, uint16_t x) {
  return type == DType::bf16 ? mtl::test::float_of_bf16(x) : mtl::test::float_of_f16(x);
}

// A matrix of any type with random values, readable as double; `offset` elements behind a multiple
// of 16 bytes.
struct Operand {
  std::vector<float> f32;
  std::vector<uint16_t> half;
  DType dtype = DType::f32;
  int64_t rows = 0, cols = 0;
  size_t offset = 0;
  Operand() = default;
  Operand(DType type, int64_t r, int64_t c, std::mt19937& random, double width = 1,
          size_t offset_ = 0)
      : dtype(type), rows(r), cols(c), offset(offset_) {
    const size_t end = offset + static_cast<size_t>(r * c);
    type == DType::f32 ? f32.resize(end) : half.resize(end);
    for (size_t i = offset; i < end; ++i) {
      // The standard's distribution would be most of the time of the large products.
      const double x = width * (static_cast<double>(random()) * 0x1p-31 - 1);
      type == DType::f32 ? void(f32[i] = static_cast<float>(x)) : void(half[i] = to_half(type, x));
    }
  }
  Tensor tensor() {
    void* data = dtype == DType::f32 ? static_cast<void*>(f32.data() + offset)
                                     : static_cast<void*>(half.data() + offset);
    return Tensor(data, dtype, {rows, cols});
  }
  double operator()(int64_t i) const {
    const size_t at = static_cast<size_t>(i) + offset;
    return dtype == DType::f32 ? static_cast<double>(f32[at]) : from_half(dtype, half[at]);
  }
  // Row by row, or column by column.
  std::vector<double> wide(bool by_columns) const {
    std::vector<double> out;
    out.reserve(static_cast<size_t>(rows * cols));
    for (int64_t i = 0; i < (by_columns ? cols : rows); ++i) {
      for (int64_t j = 0; j < (by_columns ? rows : cols); ++j) {
        out.push_back((*this)(by_columns ? j * cols + i : i * cols + j));
      }
    }
    return out;
  }
};

struct Case {
  int64_t m, n, k;
  bool ta = false, tb = false, accumulate = false;
  DType in = DType::f32, out = DType::f32;
  int bias = 0;  // 0 none, 1 f32, 2 bf16 (f16 beside f16)
  Epilogue epilogue = Epilogue::none;
  size_t offset = 0;  // of every operand
  bool gelu_once = false;
};

// Rounding of one stored value.
double unit(DType dtype) {
  return dtype == DType::f32 ? 0x1p-24 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
}
// The same where it does not shrink with the value: half of the smallest subnormal.
double smallest(DType dtype) {
  return dtype == DType::f16 ? 0x1p-25 : 1e-30;
}

void check(const Case& c) {
  CAPTURE(c.m);
  CAPTURE(c.n);
  CAPTURE(c.k);
  CAPTURE(c.ta);
  CAPTURE(c.tb);
  CAPTURE(c.accumulate);
  CAPTURE(static_cast<int>(c.in));
  CAPTURE(static_cast<int>(c.out));
  CAPTURE(c.bias);
  CAPTURE(static_cast<int>(c.epilogue));
  std::mt19937 random(static_cast<unsigned>(c.m * 131 + c.n * 17 + c.k));
  Operand a(c.in, c.ta ? c.k : c.m, c.ta ? c.m : c.k, random, 1, c.offset);
  Operand b(c.in, c.tb ? c.n : c.k, c.tb ? c.k : c.n, random, 1, c.offset);
  Operand y(c.out, c.m, c.n, random, 1, c.offset), aux;
  if (c.epilogue != Epilogue::none) aux = Operand(c.out, c.m, c.n, random, 3, c.offset);
  const DType half = c.in == DType::f16 ? DType::f16 : DType::bf16;
  Operand bias(c.bias == 2 ? half : DType::f32, 1, c.n, random, 1, c.offset);
  const Operand before = y, aux_before = aux;

  Multiplier matmul;
  Matmul args;
  args.a = a.tensor();
  args.b = b.tensor();
  args.c = y.tensor();
  args.transpose_a = c.ta;
  args.transpose_b = c.tb;
  args.accumulate = c.accumulate;
  args.epilogue = c.epilogue;
  args.gelu_once = c.gelu_once;
  if (c.bias != 0) args.bias = Tensor(bias.tensor().data, bias.dtype, {c.n});
  if (c.epilogue != Epilogue::none) args.aux = aux.tensor();
  matmul.run(args);

  // Every element, or so many of a large product that it takes no longer.
  const int64_t work = c.m * c.n * c.k;
  const int64_t step = work > 16'000'000 ? work / 4'000'000 | 1 : 1;
  const std::vector<double> wide_a = a.wide(c.ta), wide_b = b.wide(!c.tb);
  double worst = 0;
  for (int64_t at = 0; at < c.m * c.n; at += step) {
    const int64_t i = at / c.n, j = at % c.n;
    const double *row = wide_a.data() + i * c.k, *column = wide_b.data() + j * c.k;
    double product = 0, size = 0;
    for (int64_t p = 0; p < c.k; ++p) {
      const double x = row[p] * column[p];
      product += x;
      size += std::abs(x);
    }
    double sum = product;
    if (c.accumulate) {
      sum += before(at);
      size += std::abs(before(at));
    }
    if (c.bias != 0) {
      sum += bias(j);
      size += std::abs(bias(j));
    }
    // Sums of k products in f32, in any order: error below 2 (k + 4) 2^-24 sum|a b| always. Then
    // each stored value is rounded once; a GELU reads what was stored.
    double summed = 2 * static_cast<double>(c.k + 4) * 0x1p-24 * size;
    // On a GPU what a product is added to, or what is added to it, may meet it rounded (Matmul).
    if (mtl::test::gpu_under_test() != nullptr && (c.accumulate || c.bias != 0)) {
      summed += 1.01 * unit(c.out) * std::abs(product) + smallest(c.out);
      if (c.accumulate) summed += 1.01 * unit(c.out) * std::abs(product + before(at));
    }
    double expected = sum, allowed = summed + 1.01 * unit(c.out) * std::abs(sum) + smallest(c.out);
    if (c.epilogue == Epilogue::gelu) {
      worst = std::max(worst, std::abs(aux(at) - sum) / allowed);
      expected = gelu(aux(at));
      // exp2 has a relative error of 2^-22 and tanh's argument passes it on.
      allowed = 1.01 * unit(c.out) * std::abs(expected) + 0x1p-20 * (std::abs(aux(at)) + 1e-10) +
                smallest(c.out);
      // Of the sum before it is rounded into aux; GELU's slope is at most 1.13.
      if (c.gelu_once) allowed += 1.14 * (summed + 1.01 * unit(c.out) * std::abs(sum));
    } else if (c.epilogue == Epilogue::gelu_grad) {
      const double slope = gelu_slope(aux_before(at));
      expected = sum * slope;
      // The product may be rounded to the result's type before it is multiplied.
      allowed = (summed + 2.02 * unit(c.out) * std::abs(sum)) * std::abs(slope) +
                0x1p-19 * std::abs(sum) + smallest(c.out);
      if (mtl::test::gpu_under_test() != nullptr && c.out != DType::f32) {
        allowed += mtl::test::hardware_slope_error(aux_before(at)) * std::abs(sum);
      }
    }
    worst = std::max(worst, std::abs(y(at) - expected) / allowed);
  }
  CHECK(worst <= 1.0);
}

TEST_CASE("matmul: every form and type over odd sizes") {
  const int64_t sizes[][3] = {{1, 1, 1},     {1, 17, 3},    {3, 1, 65},      {17, 3, 127},
                              {65, 127, 17}, {127, 65, 65}, {64, 64, 64},    {5, 300, 33},
                              {256, 96, 31}, {2, 2, 1000},  {160, 192, 256}, {3, 17, 13001}};
  for (const auto& s : sizes) {
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        for (const bool accumulate : {false, true}) {
          Case c{s[0], s[1], s[2], ta, tb, accumulate};
          check(c);
          c.in = DType::bf16;
          check(c);
          c.out = DType::bf16;
          check(c);
          c.in = c.out = DType::f16;
          check(c);
          c.out = DType::f32;
          check(c);
        }
      }
    }
  }
}

TEST_CASE("matmul: operands that the CPU widens block by block") {
  const int64_t sizes[][3] = {
      {1460, 12, 1460}, {12, 1460, 1460}, {2100, 2100, 12}, {1460, 1470, 1480}, {3, 5, 700'001}};
  for (const auto& s : sizes) {
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        const DType in = ta == tb ? DType::bf16 : DType::f16;
        check({s[0], s[1], s[2], ta, tb, ta, in, ta ? in : DType::f32, tb ? 1 : 2});
        if (s[2] > 700'000) continue;
        check({s[0], s[1], s[2], ta, tb, !ta, in, ta ? DType::f32 : in});
        const Epilogue epilogue = ta ? Epilogue::gelu_grad : Epilogue::gelu;
        check({s[0], s[1], s[2], ta, tb, false, in, in, 2, epilogue});
      }
    }
  }
}

TEST_CASE("matmul: bias and GELU epilogues") {
  const int64_t sizes[][3] = {{1, 1, 1}, {17, 65, 3}, {65, 127, 127}, {160, 192, 256}};
  for (const auto& s : sizes) {
    for (const bool tb : {false, true}) {
      for (const int bias : {0, 1, 2}) {
        for (const Epilogue epilogue : {Epilogue::none, Epilogue::gelu, Epilogue::gelu_grad}) {
          Case c{s[0], s[1], s[2], false, tb, false, DType::f32, DType::f32, bias, epilogue};
          check(c);
          c.in = DType::bf16;
          check(c);
          c.out = DType::bf16;
          check(c);
          if (epilogue == Epilogue::gelu) {
            c.gelu_once = true;
            check(c);
            c.gelu_once = false;
          }
          c.in = c.out = DType::f16;
          check(c);
          c.out = DType::f32;
          check(c);
          if (epilogue != Epilogue::none) continue;
          c.accumulate = true;
          for (const DType in : {DType::bf16, DType::f16}) {
            for (const DType out : {in, DType::f32}) {
              c.in = in;
              c.out = out;
              check(c);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("matmul: operands at odd addresses") {
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    for (const Epilogue epilogue : {Epilogue::none, Epilogue::gelu, Epilogue::gelu_grad}) {
      for (const bool tb : {false, true}) {
        check({64, 96, 128, false, tb, false, type, type, 1, epilogue, 1});
        check({65, 97, 33, false, tb, false, type, type, 2, epilogue, 1});
      }
    }
    check({96, 64, 128, true, false, true, type, DType::f32, 0, Epilogue::none, 1});
  }
}

TEST_CASE("matmul: gelu_grad is the derivative of gelu") {
  // One product 1 * 1 with aux = x gives gelu'(x); central differences of gelu(1 * x) in f32.
  Multiplier matmul;
  const auto value = [&](float x) {
    float one = 1, y = 0, aux = 0;
    Matmul args;
    args.a = Tensor(&x, DType::f32, {1, 1});
    args.b = Tensor(&one, DType::f32, {1, 1});
    args.c = Tensor(&y, DType::f32, {1, 1});
    args.aux = Tensor(&aux, DType::f32, {1, 1});
    args.epilogue = Epilogue::gelu;
    matmul.run(args);
    CHECK(aux == x);
    return static_cast<double>(y);
  };
  for (float x : {-30.0f, -4.0f, -1.5f, -0.75f, 0.0f, 0.1f, 0.9f, 2.5f, 6.0f, 40.0f}) {
    const float h = 1.0f / 64;
    float one = 1, y = 0, aux = x;
    Matmul args;
    args.a = Tensor(&one, DType::f32, {1, 1});
    args.b = Tensor(&one, DType::f32, {1, 1});
    args.c = Tensor(&y, DType::f32, {1, 1});
    args.aux = Tensor(&aux, DType::f32, {1, 1});
    args.epilogue = Epilogue::gelu_grad;
    matmul.run(args);
    const double slope = (value(x + h) - value(x - h)) / (2.0 * static_cast<double>(h));
    // h^2/6 times a third derivative of at most 2.5, and f32 rounding of two values over 2h.
    CHECK(std::abs(static_cast<double>(y) - slope) < 1.1e-4 + 64 * 0x1p-22 * std::abs(x));
  }
}

TEST_CASE("matmul: f16 is f32 on the same inputs with the results rounded") {
  const auto widened = [](const Operand& from) {
    Operand to;
    to.rows = from.rows;
    to.cols = from.cols;
    for (int64_t i = 0; i < from.rows * from.cols; ++i) {
      to.f32.push_back(static_cast<float>(from(i)));
    }
    return to;
  };
  const auto rounded = [](const Operand& from) {
    std::vector<uint16_t> to;
    for (const float x : from.f32) to.push_back(to_half(DType::f16, static_cast<double>(x)));
    return to;
  };
  mtl::CpuMatmul matmul;
  std::mt19937 random(11);
  // Both ways of f32 (small products, and sgemm), and odd sizes. `wide` adds the range's end.
  for (const Case& c : {Case{1, 1, 1}, {17, 65, 3}, {65, 127, 129}, {300, 257, 515}}) {
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        for (const double width : {1.0, 200.0}) {
          for (const bool accumulate : {false, true}) {
            CAPTURE(c.m);
            CAPTURE(ta);
            CAPTURE(tb);
            CAPTURE(width);
            CAPTURE(accumulate);
            Operand a(DType::f16, ta ? c.k : c.m, ta ? c.m : c.k, random, width);
            Operand b(DType::f16, tb ? c.n : c.k, tb ? c.k : c.n, random, width);
            Operand bias(DType::f16, 1, c.n, random), y(DType::f16, c.m, c.n, random);
            Operand wide_a = widened(a), wide_b = widened(b), wide_bias = widened(bias),
                    wide_y = widened(y);
            Operand from_f16 = wide_y;
            Matmul args;
            args.transpose_a = ta;
            args.transpose_b = tb;
            args.accumulate = accumulate;
            args.a = wide_a.tensor();
            args.b = wide_b.tensor();
            args.c = wide_y.tensor();
            args.bias = Tensor(wide_bias.f32.data(), DType::f32, {c.n});
            matmul.run(args);
            args.a = a.tensor();
            args.b = b.tensor();
            args.c = y.tensor();
            args.bias = Tensor(bias.half.data(), DType::f16, {c.n});
            matmul.run(args);
            CHECK(y.half == rounded(wide_y));
            args.c = from_f16.tensor();
            matmul.run(args);
            CHECK(from_f16.f32 == wide_y.f32);
            if (accumulate) continue;

            // GELU reads what is stored in aux; its derivative multiplies what is not rounded yet.
            Operand aux(DType::f16, c.m, c.n, random);
            args.c = y.tensor();
            args.aux = aux.tensor();
            args.epilogue = Epilogue::gelu;
            matmul.run(args);
            CHECK(aux.half == rounded(wide_y));
            Operand one(DType::f32, 1, 1, random), wide_aux = widened(aux), wide_gelu = wide_aux;
            one.f32[0] = 1;
            Matmul plain;  // aux * 1
            plain.a = Tensor(wide_aux.f32.data(), DType::f32, {c.m * c.n, 1});
            plain.b = one.tensor();
            plain.c = Tensor(wide_gelu.f32.data(), DType::f32, {c.m * c.n, 1});
            Operand scratch = wide_gelu;
            plain.aux = Tensor(scratch.f32.data(), DType::f32, {c.m * c.n, 1});
            plain.epilogue = Epilogue::gelu;
            matmul.run(plain);
            CHECK(y.half == rounded(wide_gelu));

            args.epilogue = Epilogue::gelu_grad;
            matmul.run(args);
            Matmul wide = args;
            wide.a = wide_a.tensor();
            wide.b = wide_b.tensor();
            wide.bias = Tensor(wide_bias.f32.data(), DType::f32, {c.n});
            wide.aux = wide_aux.tensor();
            wide.c = wide_y.tensor();
            matmul.run(wide);
            CHECK(y.half == rounded(wide_y));
          }
        }
      }
    }
  }
}

TEST_CASE("matmul: results are bit-equal from run to run") {
  std::mt19937 random(7);
  const int64_t m = 256, n = 768, k = 3072;
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    for (const int form : {0, 1, 2}) {
      const bool ta = form == 2, tb = form == 1;
      Operand a(type, ta ? k : m, ta ? m : k, random), b(type, tb ? n : k, tb ? k : n, random);
      std::vector<float> first;
      for (int repeat = 0; repeat < 4; ++repeat) {
        Multiplier matmul;
        std::vector<float> y(static_cast<size_t>(m * n));
        Matmul args;
        args.a = a.tensor();
        args.b = b.tensor();
        args.c = Tensor(y.data(), DType::f32, {m, n});
        args.transpose_a = ta;
        args.transpose_b = tb;
        matmul.run(args);
        matmul.run(args);
        if (repeat == 0) first = y;
        CHECK(std::memcmp(first.data(), y.data(), y.size() * sizeof(float)) == 0);
      }
    }
  }
}

TEST_CASE("matmul: arguments that do not fit are refused") {
  std::vector<float> memory(64);
  const auto matrix = [&](int64_t r, int64_t c) {
    return Tensor(memory.data(), DType::f32, {r, c});
  };
  mtl::CpuMatmul matmul;
  Matmul args;
  args.a = matrix(2, 3);
  args.b = matrix(4, 2);
  args.c = matrix(2, 2);
  CHECK_THROWS_AS(matmul.run(args), mtl::Error);
  args.b = matrix(3, 2);
  CHECK_NOTHROW(matmul.run(args));
  args.epilogue = Epilogue::gelu;
  CHECK_THROWS_AS(matmul.run(args), mtl::Error);
  args.epilogue = Epilogue::none;
  args.bias = Tensor(memory.data(), DType::f32, {3});
  CHECK_THROWS_AS(matmul.run(args), mtl::Error);
  args.bias = {};
  args.c.dtype = DType::bf16;
  CHECK_THROWS_AS(matmul.run(args), mtl::Error);
  args.a.dtype = args.b.dtype = DType::f16;
  CHECK_THROWS_AS(matmul.run(args), mtl::Error);
  args.c.dtype = DType::f16;
  CHECK_NOTHROW(matmul.run(args));
  args.bias = Tensor(memory.data(), DType::bf16, {2});
  CHECK_THROWS_AS(matmul.run(args), mtl::Error);
}

TEST_CASE("calibration measures something, threads can be set") {
  const int before = omp_get_max_threads();
  CHECK(mtl::use_threads(1) == 1);
  CHECK(omp_get_max_threads() == 1);
  CHECK(mtl::use_threads(0) >= 1);
  omp_set_num_threads(before);
  CHECK(mtl::measure_matmul_rate(DType::f32, 0.01) > 1e6);
  CHECK(mtl::measure_memory_rate(0.01) > 1e6);
  CHECK(std::string(mtl::name_of(mtl::cpu_isa())).size() > 0);
}

}  // namespace
