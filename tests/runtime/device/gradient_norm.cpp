// The sums that the norm of all gradients is made of, and the factor that follows from it.
#include <algorithm>
#include <limits>

#include "runtime/device/many_parameters.h"

namespace mtl::test {

TEST_CASE("sum_squares: fixed chunks, the same bits on every instruction set") {
  std::vector<std::vector<double>> results;
  const auto sums = [&](Device& device) {
    std::mt19937 random(2);
    std::vector<double> all;
    for (const int64_t n : {1, 15, 16, 17, 4095, 4096, 4097, 8192, 20001}) {
      const int64_t chunks = (n + kNormChunk - 1) / kNormChunk;
      Held x(DType::f32, {n}), partials(DType::f64, {chunks});
      x.randomize(random, 1000);
      const HeldPieces pieces(n);
      device.sum_squares({.pieces = pieces.view, .x = x.view, .partials = partials.view});
      for (int64_t c = 0; c < chunks; ++c) {
        double sum = 0;
        for (int64_t i = c * kNormChunk; i < std::min(n, (c + 1) * kNormChunk); ++i) {
          sum += x[i] * x[i];
        }
        // Squares of f32 are exact in f64; 4096 additions of 2^-53.
        CHECK(std::abs(partials[c] / sum - 1) <= 1e-12);
        all.push_back(partials[c]);
      }
    }
    results.push_back(all);
  };
  for_each_cpu_device(sums);
  for (const std::vector<double>& result : results) CHECK(result == results[0]);
  // A GPU's order is another one, but the same at every address.
  results.clear();
  for_each_cuda_device(sums);
  CHECK(results[0] == results[1]);
}

TEST_CASE("sum_squares does not overflow where f32 would") {
  for_each_device([](Device& device) {
    Held x(DType::f32, {100}), partials(DType::f64, {1});
    device.fill(x.view, 1e30f);
    const HeldPieces pieces(100);
    const SumSquares args = {.pieces = pieces.view, .x = x.view, .partials = partials.view};
    device.sum_squares(args);
    CHECK(partials[0] == doctest::Approx(1e62));
    x.set(50, NAN);
    device.sum_squares(args);
    CHECK(std::isnan(partials[0]));
  });
}

TEST_CASE("sums of squares of many parameters are those of their cells") {
  for_each_device([](Device& device) {
    std::mt19937 random(7);
    Held grad(DType::f32, {kFlat});
    grad.randomize(random, 10);
    const HeldPieces pieces(kParts);
    Held partials(DType::f64, {pieces.view.cells});
    device.sum_squares({.pieces = pieces.view, .x = grad.view, .partials = partials.view});
    int64_t at = 0;
    for (const HeldPieces::Part& part : kParts) {
      int64_t begin = part.offset;
      const int64_t end = part.offset + part.count;
      while (begin < end) {
        const int64_t border = std::min(end, (begin / kNormChunk + 1) * kNormChunk);
        // The bits of the same elements alone.
        Held cell(DType::f32, {border - begin}), sum(DType::f64, {1});
        held_part(cell, grad.view, begin);
        const HeldPieces alone(border - begin);
        device.sum_squares({.pieces = alone.view, .x = cell.view, .partials = sum.view});
        CHECK(partials[at++] == sum[0]);
        CHECK(sum[0] > 0);
        begin = border;
      }
    }
    CHECK(at == pieces.view.cells);
  });
}

TEST_CASE("sum_ranges adds each range in an order of its own length") {
  for_each_device([](Device& device) {
    std::mt19937 random(8);
    Held x(DType::f64, {5000});
    x.randomize(random);
    const std::vector<ElementRange> ranges = {{0, 1},       {7, 0},       {1, 1000},
                                              {4000, 1000}, {1001, 2999}, {1, 1000}};
    Held table(DType::u8, {static_cast<int64_t>(ranges.size() * sizeof(ElementRange))}, 0);
    std::memcpy(table.view.data, ranges.data(), ranges.size() * sizeof(ElementRange));
    std::memcpy(x.view.as<double>() + 4000, x.view.as<double>() + 1, 1000 * sizeof(double));
    Held out(DType::f64, {static_cast<int64_t>(ranges.size())});
    device.sum_ranges(x.view, table.view, out.view);
    for (size_t i = 0; i < ranges.size(); ++i) {
      double sum = 0;
      for (int64_t k = 0; k < ranges[i].count; ++k) sum += x[ranges[i].first + k];
      CHECK(out[static_cast<int64_t>(i)] == doctest::Approx(sum).epsilon(1e-12));
    }
    CHECK(out[0] == x[0]);
    CHECK(out[1] == 0);
    CHECK(out[2] == out[3]);  // wherever it lies
    CHECK(out[2] == out[5]);
  });
}

TEST_CASE("gradient_scale: norm and factor and no factor where something is not finite") {
  for_each_device([](Device& device) {
    const double infinite = std::numeric_limits<double>::infinity();
    struct Case {
      double square, loss, counted, tokens, loss_scale, clip;
    };
    for (const Case& c :
         {Case{4, 10, 100, 100, 1, 0}, Case{4, 10, 100, 100, 1, 1}, Case{4, 10, 80, 100, 1024, 1},
          Case{1e-6, 10, 100, 100, 65536, 1}, Case{4, 10, 0, 100, 1, 1}, Case{0, 0, 100, 100, 1, 1},
          Case{4, NAN, 100, 100, 1, 1}, Case{4, infinite, 100, 100, 1, 1},
          Case{NAN, 10, 100, 100, 1, 1}, Case{infinite, 10, 100, 100, 1, 1}}) {
      CAPTURE(c.square);
      CAPTURE(c.loss);
      CAPTURE(c.counted);
      Held rows(DType::f64, {700}), loss(DType::f64, {1}), counted(DType::f64, {1});
      Held norm(DType::f64, {1}), factor(DType::f32, {1});
      for (int64_t i = 0; i < 700; ++i) rows.set(i, i % 7 == 0 ? 0 : 1);
      rows.set(300, c.square);
      loss.set(0, c.loss);
      counted.set(0, c.counted);
      device.gradient_scale({.row_squares = rows.view,
                             .loss = loss.view,
                             .counted = counted.view,
                             .tokens = c.tokens,
                             .loss_scale = c.loss_scale,
                             .clip = c.clip,
                             .norm = norm.view,
                             .factor = factor.view});
      const double correction = c.counted > 0 ? c.tokens / c.counted : 0;
      // 700 rows, of which every seventh counts nothing and one is the case's.
      const double expected = std::sqrt(599 + c.square) / c.loss_scale * correction;
      double scale = c.clip > 0 ? std::min(1.0, c.clip / (expected + 1e-6)) : 1;
      scale = scale / c.loss_scale * correction;
      if (std::isfinite(c.square)) CHECK(norm[0] == doctest::Approx(expected).epsilon(1e-12));
      if (std::isfinite(c.square) && std::isfinite(c.loss)) {
        CHECK(factor[0] == doctest::Approx(scale).epsilon(1e-6));
      } else {
        CHECK(std::isnan(factor[0]));
      }
    }
  });
}

}  // namespace mtl::test
