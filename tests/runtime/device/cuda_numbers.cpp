// Numbers of the CUDA engine's kernels that no comparison with the CPU engine shows: elements
// beyond 32 bits, the bits of GELU, and that nothing depends on the number of multiprocessors.
#include <optional>

#include <sys/mman.h>

#include "runtime/device/ops_test.h"

namespace mtl::test {

namespace {

// Memory that is only there where it is touched; null where the system promises no more than it
// has.
class Sparse {
 public:
  explicit Sparse(size_t bytes) : bytes_(bytes) {
    data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                -1, 0);
    if (data == MAP_FAILED) data = nullptr;
  }
  ~Sparse() {
    if (data != nullptr) munmap(data, bytes_);
  }
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;
  void* data = nullptr;

 private:
  size_t bytes_;
};

}  // namespace

TEST_CASE("cuda: dropout's element numbers beyond 32 bits") {
  // Elements around 2^34, where the counter passes 2^32, and far beyond.
  for (const int64_t cols : {64, 3}) {
    for (const int64_t element : {int64_t{1} << 32, int64_t{1} << 34, int64_t{1} << 55}) {
      for (const bool aligned : {false, true}) {
        std::optional<AlignedTensors> addresses;
        if (aligned) addresses.emplace();
        // The rows in the pass, or the pass in the batch: of a size that packs of four would miss,
        // too.
        for (const int64_t sequence : {int64_t{0}, element, element / 3}) {
          const int64_t first_row = sequence > 0 ? 0 : element / cols - 2, rows = 5;
          INFO("row " << first_row << " of " << cols << " columns");
          EmulatedCuda device;
          const Dropout dropout = dropout_in_test_memory(0.5f, sequence > 0 ? 3 : 0, sequence);
          Held x(DType::f32, {rows, cols}), positions(DType::f32, {7, cols});
          Held out(DType::f32, {rows, cols}), dpositions(DType::f32, {7, cols});
          device.fill(x.view, 1);
          int64_t wrong = 0;
          const auto check = [&] {
            for (int64_t i = 0; i < x.size(); ++i) {
              wrong += out[i] != dropout_factor(dropout, first_row * cols + i);
            }
          };
          device.dropout_backward(
              {.dout = x.view, .dx = out.view, .dropout = dropout, .first_row = first_row});
          check();
          device.position_forward(x.view, positions.view, 7, out.view, dropout, first_row);
          check();
          device.position_backward(x.view, 7, out.view, dpositions.view, false, dropout, first_row);
          check();
          CHECK(wrong == 0);
        }
      }
    }
  }
}

TEST_CASE("cuda: offsets beyond 2^32 elements") {
  EmulatedCuda device;
  {
    // The last rows of a table of 2^33 elements, and its gradient.
    const int64_t cols = 4096, rows = (int64_t{1} << 33) / cols;
    const Sparse table(static_cast<size_t>(rows * cols * 2));
    const Sparse dtable(static_cast<size_t>(rows * cols * 4));
    if (table.data == nullptr || dtable.data == nullptr) {
      MESSAGE("skipped: the system does not overcommit memory");
      return;
    }
    auto* const elements = static_cast<uint16_t*>(table.data);
    elements[(rows - 1) * cols + 5] = bf16_of_float(7);
    elements[(rows / 2) * cols + 6] = bf16_of_float(8);
    Held tokens(DType::i32, {3}), out(DType::bf16, {3, cols});
    tokens.set(0, static_cast<double>(rows - 1));
    tokens.set(1, static_cast<double>(rows / 2));
    tokens.set(2, static_cast<double>(rows - 1));
    device.embedding_forward(tokens.view, Tensor(table.data, DType::bf16, {rows, cols}), 0,
                             out.view);
    CHECK(out[5] == 7);
    CHECK(out[cols + 6] == 8);
    CHECK(out[2 * cols + 5] == 7);
    device.embedding_backward(tokens.view, out.view, 0,
                              Tensor(dtable.data, DType::f32, {rows, cols}));
    const auto* const gradient = static_cast<const float*>(dtable.data);
    CHECK(gradient[(rows - 1) * cols + 5] == 14);
    CHECK(gradient[(rows / 2) * cols + 6] == 8);
  }
  {
    // Two rows, 2^32 + 8 elements apart, of which the first head's columns are normed.
    const int64_t width = (int64_t{1} << 32) + 8, dim = 16;
    const Sparse x(static_cast<size_t>(2 * width * 2)), raw(static_cast<size_t>(2 * width * 2));
    if (x.data == nullptr || raw.data == nullptr) return;
    auto* const elements = static_cast<uint16_t*>(x.data);
    Held gamma(DType::bf16, {dim}), rstd(DType::f32, {2, 1}), dgamma(DType::f32, {dim});
    device.fill(gamma.view, 1);
    for (int64_t i = 0; i < dim; ++i) {
      elements[i] = bf16_of_float(2);
      elements[width + i] = bf16_of_float(-4);
    }
    const Tensor rows(x.data, DType::bf16, {2, width}), saved(raw.data, DType::bf16, {2, width});
    device.head_norm_forward({.x = rows,
                              .raw = saved,
                              .first_column = 0,
                              .heads = 1,
                              .head_dim = dim,
                              .gamma = gamma.view,
                              .rstd = rstd.view,
                              .eps = 0});
    CHECK(float_of_bf16(elements[dim - 1]) == 1);
    CHECK(float_of_bf16(elements[width + dim - 1]) == -1);
    CHECK(float_of_bf16(static_cast<const uint16_t*>(raw.data)[width]) == -4);
    CHECK(rstd[1] == 0.25);
    device.head_norm_backward({.dx = rows,
                               .raw = saved,
                               .first_column = 0,
                               .heads = 1,
                               .head_dim = dim,
                               .gamma = gamma.view,
                               .rstd = rstd.view,
                               .dgamma = dgamma.view});
    CHECK(dgamma[0] == 2);  // 1 * 1 + (-1) * (-1)
    CHECK(float_of_bf16(elements[width]) == 0);
    // The same columns as one vector.
    for (int64_t i = 0; i < dim; ++i) {
      elements[i] = bf16_of_float(2);
      elements[width + i] = bf16_of_float(-4);
    }
    Held squares(DType::f32, {2}), products(DType::f32, {2});
    const WideNorm wide = {.x = rows,
                           .raw = saved,
                           .first_column = 0,
                           .columns = dim,
                           .gamma = gamma.view,
                           .squares = squares.view,
                           .inverse = 1.0f / dim,
                           .eps = 0};
    device.wide_norm_squares(wide);
    CHECK(squares[0] == 64);
    CHECK(squares[1] == 256);
    device.wide_norm_forward(wide);
    CHECK(float_of_bf16(elements[dim - 1]) == 1);
    CHECK(float_of_bf16(elements[width + dim - 1]) == -1);
    CHECK(float_of_bf16(static_cast<const uint16_t*>(raw.data)[width + dim - 1]) == -4);
    const WideNormBackward wide_backward = {.dx = rows,
                                            .raw = saved,
                                            .first_column = 0,
                                            .columns = dim,
                                            .gamma = gamma.view,
                                            .squares = squares.view,
                                            .products = products.view,
                                            .dgamma = dgamma.view,
                                            .inverse = 1.0f / dim,
                                            .eps = 0};
    device.wide_norm_products(wide_backward);
    CHECK(products[1] == dim);
    device.wide_norm_backward(wide_backward);
    CHECK(dgamma[0] == 2);
    CHECK(float_of_bf16(elements[width]) == 0);
  }
}

TEST_CASE("cuda: gelu and its gradient against double precision with the same bits everywhere") {
  const int64_t n = 20011;
  for (const DType type : kComputeTypes) {
    INFO("type " << safetensors_name(type));
    std::vector<std::vector<uint8_t>> results;
    for (const bool aligned : {false, true}) {
      std::optional<AlignedTensors> addresses;
      if (aligned) addresses.emplace();
      EmulatedCuda device;
      Held aux(type, {n}), y(type, {n}), one(type, {1}), ones(type, {1, n}), dx(type, {1, n});
      for (int64_t i = 0; i < n; ++i) aux.set(i, -12 + 24.0 * static_cast<double>(i) / n);
      aux.set(0, -60000), aux.set(1, 60000), aux.set(2, -100), aux.set(3, 100), aux.set(4, -0.0);
      device.gelu_forward(aux.view, y.view);
      results.push_back(y.bytes());
      // The gradient by the matmul 1 * ones, which is dy = 1.
      device.fill(one.view, 1);
      device.fill(ones.view, 1);
      const Tensor scalar(one.view.data, type, {1, 1});
      device.matmul({.a = scalar,
                     .b = ones.view,
                     .c = dx.view,
                     .epilogue = Epilogue::gelu_grad,
                     .aux = Tensor(aux.view.data, type, {1, n})});
      results.push_back(dx.bytes());
      std::vector<double> expected, slopes;
      const double c = std::sqrt(2 / std::acos(-1.0));
      for (int64_t i = 0; i < n; ++i) {
        const double x = aux[i], t = std::tanh(c * (x + 0.044715 * x * x * x));
        expected.push_back(0.5 * x * (1 + t));
        slopes.push_back(0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x));
      }
      check_close(y, expected, 2e-6, "gelu");
      check_close(dx, slopes, 2e-6, "gelu'");
    }
    CHECK(results[0] == results[2]);
    CHECK(results[1] == results[3]);
  }
  // Beyond: no NaN that was not there.
  EmulatedCuda device;
  Held x(DType::f32, {4}), dy(DType::f32, {4});
  x.set(0, 1e38), x.set(1, -1e38), x.set(2, NAN), x.set(3, 1e19);
  device.gelu_forward(x.view, dy.view);
  CHECK(dy[0] == x[0]);
  CHECK(dy[1] == 0);
  CHECK(std::isnan(dy[2]));
  device.fill(dy.view, 2);
  device.gelu_backward(dy.view, x.view);
  CHECK(dy[0] == 2);
  CHECK(dy[1] == 0);
  CHECK(std::isnan(dy[2]));
  CHECK(dy[3] == 2);
}

TEST_CASE("cuda: bits depend on no number of multiprocessors") {
  std::vector<std::vector<uint8_t>> results;
  for (const int multiprocessors : {1, 3, 148}) {
    EmulatedCuda device(multiprocessors);
    const AlignedTensors aligned;
    std::mt19937 random(9);
    std::vector<uint8_t> bytes;
    const auto keep = [&](const Held& x) {
      const std::vector<uint8_t> b = x.bytes();
      bytes.insert(bytes.end(), b.begin(), b.end());
    };
    const int64_t rows = 600, cols = 72;
    Held x(DType::bf16, {rows, cols}), dy(DType::bf16, {rows, cols}), gamma(DType::bf16, {cols});
    Held dx(DType::bf16, {rows, cols}), mean(DType::f32, {rows}), rstd(DType::f32, {rows});
    Held dgamma(DType::f32, {cols}), dbeta(DType::f32, {cols}), total(DType::f64, {1});
    Held tokens(DType::i32, {rows}), dtable(DType::f32, {50, cols}), dhead(DType::f32, {24});
    Held long_one(DType::f32, {30000}), partials(DType::f64, {8}), head_rstd(DType::f32, {rows, 3});
    x.randomize(random);
    dy.randomize(random);
    gamma.randomize(random);
    long_one.randomize(random);
    tokens.randomize_ids(random, 0, 50);
    device.layernorm_forward({.x = x.view,
                              .gamma = gamma.view,
                              .beta = {},
                              .y = dx.view,
                              .mean = mean.view,
                              .rstd = rstd.view});
    keep(dx), keep(mean), keep(rstd);
    device.layernorm_backward({.dy = dy.view,
                               .x = x.view,
                               .gamma = gamma.view,
                               .mean = mean.view,
                               .rstd = rstd.view,
                               .dx = dx.view,
                               .dgamma = dgamma.view,
                               .dbeta = dbeta.view});
    keep(dx), keep(dgamma), keep(dbeta);
    device.bias_grad(dy.view, dbeta.view, true);
    device.embedding_backward(tokens.view, dy.view, 0, dtable.view);
    device.sum(long_one.view, total.view, false);
    const HeldPieces pieces(30000);
    device.sum_squares({.pieces = pieces.view, .x = long_one.view, .partials = partials.view});
    keep(dbeta), keep(dtable), keep(total), keep(partials);
    device.fill(head_rstd.view, 1);
    device.head_norm_backward({.dx = dy.view,
                               .raw = x.view,
                               .first_column = 0,
                               .heads = 3,
                               .head_dim = 24,
                               .gamma = Tensor(gamma.view.data, DType::bf16, {24}),
                               .rstd = head_rstd.view,
                               .dgamma = dhead.view});
    keep(dy), keep(dhead);
    Held squares(DType::f32, {rows}), products(DType::f32, {rows}), dwide(DType::f32, {cols});
    const WideNorm wide = {.x = x.view,
                           .raw = dx.view,
                           .first_column = 0,
                           .columns = cols,
                           .gamma = gamma.view,
                           .squares = squares.view,
                           .inverse = 1.0f / cols};
    device.wide_norm_squares(wide);
    device.wide_norm_forward(wide);
    const WideNormBackward wide_backward = {.dx = dy.view,
                                            .raw = dx.view,
                                            .first_column = 0,
                                            .columns = cols,
                                            .gamma = gamma.view,
                                            .squares = squares.view,
                                            .products = products.view,
                                            .dgamma = dwide.view,
                                            .inverse = 1.0f / cols};
    device.wide_norm_products(wide_backward);
    device.wide_norm_backward(wide_backward);
    keep(squares), keep(x), keep(products), keep(dy), keep(dwide);
    results.push_back(bytes);
  }
  CHECK(results[0] == results[1]);
  CHECK(results[0] == results[2]);
}

}  // namespace mtl::test
