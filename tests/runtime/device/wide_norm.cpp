// RMS normalisation of columns as one vector (OLMo 2's QK-norm) against a double-precision
// reference and finite differences, of all columns by one rank and divided between two.
#include "runtime/device/norm_reference.h"
#include "runtime/device/ops_test.h"

namespace mtl::test {

namespace {

struct WideCase {
  int64_t rows, columns, before, after, raw_after;  // columns before and after those of the norm
  int64_t cols() const { return before + columns + after; }
  int64_t raw_cols() const { return before + columns + raw_after; }
};
const WideCase kWideCases[] = {{1, 1, 0, 0, 0},     {3, 10, 3, 4, 0},      {5, 48, 0, 48, 16},
                               {33, 34, 34, 1, 2},  {40, 256, 64, 0, 5},   {7, 80, 0, 160, 0},
                               {150, 384, 0, 1, 0}, {2, 768, 768, 768, 0}, {3, 5000, 8, 0, 1000}};

// The columns of the norm out of rows, and rows with them replaced.
std::vector<double> wide_columns_of(const Held& x, const WideCase& c) {
  std::vector<double> result;
  for (int64_t i = 0; i < c.rows * c.columns; ++i) {
    result.push_back(x[i / c.columns * x.view.cols() + c.before + i % c.columns]);
  }
  return result;
}
std::vector<double> with_wide_columns(std::vector<double> rows, int64_t cols, const WideCase& c,
                                      const std::vector<double>& columns) {
  for (int64_t i = 0; i < c.rows * c.columns; ++i) {
    rows[static_cast<size_t>(i / c.columns * cols + c.before + i % c.columns)] =
        columns[static_cast<size_t>(i)];
  }
  return rows;
}

// Elements outside of the norm's columns that are not as they were.
int64_t touched(const Held& x, const std::vector<double>& before, const WideCase& c) {
  int64_t count = 0;
  for (int64_t i = 0; i < x.size(); ++i) {
    const int64_t column = i % x.view.cols() - c.before;
    if (column >= 0 && column < c.columns) continue;
    count += x[i] != before[static_cast<size_t>(i)];
  }
  return count;
}

std::vector<double> squares_of(const std::vector<double>& x, int64_t rows) {
  const size_t columns = x.size() / static_cast<size_t>(rows);
  std::vector<double> sums(static_cast<size_t>(rows), 0.0);
  for (size_t i = 0; i < x.size(); ++i) sums[i / columns] += x[i] * x[i];
  return sums;
}

// What a rank has, its own columns alone; `squares` and `products` are its own sums or those of all
// ranks.
struct WidePart {
  Tensor x, raw, gamma, dgamma, squares, products;
  int64_t first_column = 0, columns = 0;
  float inverse = 0, eps = 0;

  WideNorm forward() const {
    return {.x = x,
            .raw = raw,
            .first_column = first_column,
            .columns = columns,
            .gamma = gamma,
            .squares = squares,
            .inverse = inverse,
            .eps = eps};
  }
  WideNormBackward backward(const Tensor& dx, bool accumulate = false) const {
    return {.dx = dx,
            .raw = raw,
            .first_column = first_column,
            .columns = columns,
            .gamma = gamma,
            .squares = squares,
            .products = products,
            .dgamma = dgamma,
            .inverse = inverse,
            .eps = eps,
            .accumulate = accumulate};
  }
};

// Tensors of a case, of one type.
struct WideTensors {
  WideTensors(const WideCase& of, DType type)
      : c(of),
        x(type, {c.rows, c.cols()}),
        raw(type, {c.rows, c.raw_cols()}),
        dx(type, {c.rows, c.cols()}),
        gamma(type, {c.columns}),
        squares(DType::f32, {c.rows}),
        products(DType::f32, {c.rows}),
        dgamma(DType::f32, {c.columns}) {}
  void randomize(std::mt19937& random) {
    x.randomize(random, 2);
    raw.randomize(random);
    dx.randomize(random);
    gamma.randomize(random, 0.2, 1);
    dgamma.randomize(random);
  }
  // The part of columns [first, first + count), with sums of its own.
  WidePart part(int64_t first, int64_t count, const Held& own_squares, const Held& own_products,
                float eps) const {
    return {.x = x.view,
            .raw = raw.view,
            .gamma = gamma.view.slice(first, count),
            .dgamma = dgamma.view.slice(first, count),
            .squares = own_squares.view,
            .products = own_products.view,
            .first_column = c.before + first,
            .columns = count,
            .inverse = 1 / static_cast<float>(c.columns),
            .eps = eps};
  }
  WidePart whole(float eps) const { return part(0, c.columns, squares, products, eps); }

  WideCase c;
  Held x, raw, dx, gamma, squares, products, dgamma;
};

}  // namespace

TEST_CASE("wide_norm_forward norms its columns, keeps them raw and touches no others") {
  for_each_device([](Device& device) {
    std::mt19937 random(1);
    const float eps = 1e-3f;
    for (const WideCase& c : kWideCases) {
      for (const DType type : kComputeTypes) {
        INFO("rows " << c.rows << " of " << c.columns << " from column " << c.before << " type "
                     << safetensors_name(type));
        WideTensors t(c, type);
        t.randomize(random);
        const std::vector<double> before = t.x.values(), raw_before = t.raw.values();
        const std::vector<double> x = wide_columns_of(t.x, c);
        const std::vector<double> expected = with_wide_columns(
            before, c.cols(), c,
            norm_forward(Norm::rms, x, t.gamma.values(), {}, static_cast<double>(eps)));
        const WideNorm args = t.whole(eps).forward();
        device.wide_norm_squares(args);
        CHECK(t.x.values() == before);
        CHECK(t.raw.values() == raw_before);
        const std::vector<double> squares = squares_of(x, c.rows);
        for (int64_t i = 0; i < c.rows; ++i) {
          CHECK(std::abs(t.squares[i] / squares[static_cast<size_t>(i)] - 1) <= 2e-6);
        }
        device.wide_norm_forward(args);
        check_close(t.x, expected, 5e-6, "x");  // a few roundings of numbers below 10
        CHECK(t.raw.values() == with_wide_columns(raw_before, c.raw_cols(), c, x));
        CHECK(touched(t.x, before, c) == 0);
      }
    }
  });
}

TEST_CASE("wide_norm_backward against the formulas in double precision") {
  for_each_device([](Device& device) {
    std::mt19937 random(2);
    const float eps = 0.1f;
    for (const WideCase& c : kWideCases) {
      for (const DType type : kComputeTypes) {
        for (const bool accumulate : {false, true}) {
          INFO("rows " << c.rows << " of " << c.columns << " type " << safetensors_name(type));
          WideTensors t(c, type);
          t.randomize(random);
          const std::vector<double> x = wide_columns_of(t.raw, c), dy = wide_columns_of(t.dx, c);
          const std::vector<double> gamma = t.gamma.values(), before = t.dx.values();
          NormGradients expected = norm_backward(Norm::rms, x, dy, gamma, static_cast<double>(eps));
          if (accumulate) expected.dgamma = added(expected.dgamma, t.dgamma.values());
          const std::vector<double> squares = squares_of(x, c.rows);
          std::vector<double> products(static_cast<size_t>(c.rows), 0.0);
          for (size_t i = 0; i < products.size(); ++i) {
            const auto columns = static_cast<size_t>(c.columns);
            t.squares.set(static_cast<int64_t>(i), squares[i]);
            const double rstd =
                norm_row(Norm::rms, x.data() + i * columns, columns, static_cast<double>(eps)).rstd;
            for (size_t k = 0; k < columns; ++k) {
              products[i] += dy[i * columns + k] * gamma[k] * x[i * columns + k] * rstd;
            }
          }
          const WideNormBackward args = t.whole(eps).backward(t.dx.view, accumulate);
          device.wide_norm_products(args);
          CHECK(t.dx.values() == before);
          // A few f32 roundings of values below 20 each; the sums grow like a square root.
          check_close(t.products, products, 5e-6 * std::sqrt(static_cast<double>(c.columns)),
                      "products");
          device.wide_norm_backward(args);
          check_close(t.dx, with_wide_columns(before, c.cols(), c, expected.dx), 5e-6, "dx");
          check_close(t.dgamma, expected.dgamma, 5e-6 * std::sqrt(static_cast<double>(c.rows)),
                      "dgamma");
          CHECK(touched(t.dx, before, c) == 0);
        }
      }
    }
  });
}

TEST_CASE("wide_norm_backward is the finite difference of the forward reference") {
  for_each_device([](Device& device) {
    std::mt19937 random(3);
    for (const WideCase& c :
         {WideCase{2, 1, 0, 0, 0}, WideCase{3, 14, 2, 3, 0}, WideCase{2, 57, 1, 0, 4}}) {
      WideTensors t(c, DType::f32);
      t.randomize(random);
      std::vector<double> xs = wide_columns_of(t.x, c), gammas = t.gamma.values();
      const std::vector<double> weights = wide_columns_of(t.dx, c), dx_before = t.dx.values();
      const float eps = 0.1f;  // large, so that a single column has a derivative to speak of
      device.wide_norm_squares(t.whole(eps).forward());
      device.wide_norm_forward(t.whole(eps).forward());
      device.wide_norm_products(t.whole(eps).backward(t.dx.view));
      device.wide_norm_backward(t.whole(eps).backward(t.dx.view));
      const auto outputs = [&] {
        return norm_forward(Norm::rms, xs, gammas, {}, static_cast<double>(eps));
      };
      // A few 2^-24 of values below 10.
      check_close(t.dx,
                  with_wide_columns(dx_before, c.cols(), c, derivatives(xs, weights, outputs)),
                  5e-6, "dx");
      check_close(t.dgamma, derivatives(gammas, weights, outputs), 5e-6, "dgamma");
    }
  });
}

TEST_CASE("wide_norm of columns that two ranks have is that of one") {
  for_each_device([](Device& device) {
    std::mt19937 random(4);
    const float eps = 1e-3f;
    for (const WideCase& c : {WideCase{5, 48, 16, 8, 0}, WideCase{35, 771, 2, 3, 4}}) {
      for (const DType type : kComputeTypes) {
        for (const int64_t first : {int64_t{1}, c.columns / 2, c.columns / 16 * 8}) {
          INFO(first << " of " << c.columns << " columns, type " << safetensors_name(type));
          WideTensors t(c, type);
          t.randomize(random);
          const std::vector<double> x = wide_columns_of(t.x, c), dy = wide_columns_of(t.dx, c);
          const std::vector<double> y =
              norm_forward(Norm::rms, x, t.gamma.values(), {}, static_cast<double>(eps));
          const NormGradients gradients =
              norm_backward(Norm::rms, x, dy, t.gamma.values(), static_cast<double>(eps));
          const std::vector<double> expected = with_wide_columns(t.x.values(), c.cols(), c, y);
          const std::vector<double> expected_dx =
              with_wide_columns(t.dx.values(), c.cols(), c, gradients.dx);
          // One rank has `squares` and `products`, the other these; then both have the sums.
          const Held squares(DType::f32, {c.rows}), products(DType::f32, {c.rows});
          const WidePart left = t.part(0, first, t.squares, t.products, eps);
          WidePart right = t.part(first, c.columns - first, squares, products, eps);
          device.wide_norm_squares(left.forward());
          device.wide_norm_squares(right.forward());
          device.add(right.squares, left.squares);
          right.squares = left.squares;
          device.wide_norm_forward(left.forward());
          device.wide_norm_forward(right.forward());
          check_close(t.x, expected, 5e-6, "x");
          device.wide_norm_products(left.backward(t.dx.view));
          device.wide_norm_products(right.backward(t.dx.view));
          device.add(right.products, left.products);
          right.products = left.products;
          device.wide_norm_backward(left.backward(t.dx.view));
          device.wide_norm_backward(right.backward(t.dx.view));
          check_close(t.dx, expected_dx, 5e-6, "dx");
          check_close(t.dgamma, gradients.dgamma, 5e-6 * std::sqrt(static_cast<double>(c.rows)),
                      "dgamma");
        }
      }
    }
  });
}

}  // namespace mtl::test
