// What a GPU's kernel gets wrong and a CPU's loop does not: rows wider than a warp or a block
// reaches, or than registers hold; more rows than a grid has teams; both paths through memory;
// chunks and grids of every size. The kernels, on the host or on a GPU (device_under_test.h),
// against the CPU engine, which has its own tests against double-precision references.
#include <functional>
#include <optional>

#include "runtime/device/ops_test.h"

namespace mtl::test {

namespace {

// A GPU with one multiprocessor: the smallest grids, so that every kernel goes round.
constexpr int kFew = 1;

// The tensors that an op writes, in the order it was given.
using Outputs = std::vector<std::vector<double>>;

// What `op` writes on the CPU and on the GPU, at odd and at aligned addresses, lies within
// `error` of each other, relative to the largest value of a tensor, plus the rounding of its type.
// `op` makes its own tensors from `random`, the same each time.
using Op = std::function<Outputs(Device&, std::mt19937&)>;
void check_like_cpu(DType type, double error, const Op& op) {
  CpuDevice cpu(2, Isa::base);
  EmulatedCuda emulated(kFew);
  Device& cuda = gpu_under_test() != nullptr ? *gpu_under_test() : emulated;
  std::mt19937 random(1);
  const Outputs expected = op(cpu, random);
  for (const bool aligned : {false, true}) {
    INFO("type " << safetensors_name(type) << " aligned " << aligned);
    std::optional<AlignedTensors> addresses;
    if (aligned) addresses.emplace();
    std::mt19937 again(1);
    const Outputs actual = op(cuda, again);
    REQUIRE(actual.size() == expected.size());
    for (size_t t = 0; t < actual.size(); ++t) {
      REQUIRE(actual[t].size() == expected[t].size());
      double largest = 0;
      for (const double x : expected[t]) largest = std::max(largest, std::abs(x));
      int64_t wrong = 0, first = -1;
      for (size_t i = 0; i < actual[t].size(); ++i) {
        const double bound = error * largest + 2 * storage_error(type, expected[t][i]);
        if (std::abs(actual[t][i] - expected[t][i]) <= bound) continue;
        if (wrong++ == 0) first = static_cast<int64_t>(i);
      }
      INFO("tensor " << t << ", first wrong at " << first);
      CHECK(wrong == 0);
    }
  }
}

}  // namespace

TEST_CASE("cuda: norms of rows around every width that changes the kernel") {
  struct Shape {
    int64_t rows, cols;
  };
  // A thread has one pack up to 1,024 (f32) or 2,048 columns, then two, from 2,048 / 4,096 on in a
  // block of twice the threads, and of rows beyond 4,096 / 8,192 none. One column less or more
  // takes the path without packs. Rows that are no whole rounds, and several rounds of a block.
  for (const Shape shape : {Shape{300, 8},
                            {70, 384},
                            {37, 768},
                            {19, 776},
                            {18, 1024},
                            {17, 1025},
                            {9, 1032},
                            {70, 1600},
                            {9, 2048},
                            {35, 2056},
                            {3, 4096},
                            {7, 4104},
                            {2, 8192},
                            {2, 8200},
                            {2, 16392},
                            {10, 4099}}) {
    for (const DType type : kComputeTypes) {
      for (const bool centered : {true, false}) {
        INFO(shape.rows << " x " << shape.cols << " centered " << centered);
        const int64_t rows = shape.rows, cols = shape.cols;
        check_like_cpu(type, 2e-5, [&](Device& device, std::mt19937& random) -> Outputs {
          Held x(type, {rows, cols}), y(type, {rows, cols}), dx(type, {rows, cols});
          Held gamma(type, {cols}), beta(type, {cols});
          Held mean(DType::f32, {rows}), rstd(DType::f32, {rows});
          Held dgamma(DType::f32, {cols}), dbeta(DType::f32, {cols});
          x.randomize(random, 1, 3);
          gamma.randomize(random, 0.2, 1);
          beta.randomize(random);
          dx.randomize(random);
          dgamma.randomize(random);
          device.layernorm_forward({.x = x.view,
                                    .gamma = gamma.view,
                                    .beta = beta.view,
                                    .y = y.view,
                                    .mean = centered ? mean.view : Tensor{},
                                    .rstd = rstd.view});
          const std::vector<double> forward = y.values();
          y.randomize(random);
          device.layernorm_backward({.dy = y.view,
                                     .x = x.view,
                                     .gamma = gamma.view,
                                     .mean = centered ? mean.view : Tensor{},
                                     .rstd = rstd.view,
                                     .dx = dx.view,
                                     .dgamma = dgamma.view,
                                     .dbeta = dbeta.view,
                                     .add_to_dx = centered,
                                     .accumulate = !centered});
          if (!centered) mean.set(0, 0);
          return {forward,     mean.values(),   rstd.values(),
                  dx.values(), dgamma.values(), dbeta.values()};
        });
      }
    }
  }
}

TEST_CASE("cuda: sums over more rows than there are chunks of the least size") {
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const int64_t rows : {31, 32, 33, 16385, 65600}) {
      INFO(rows << " rows");
      const int64_t cols = 8;
      check_like_cpu(type, 2e-5, [&](Device& device, std::mt19937& random) -> Outputs {
        Held x(type, {rows, cols}), dy(type, {rows, cols}), gamma(type, {cols});
        Held rstd(DType::f32, {rows}), mean(DType::f32, {rows}), db(DType::f32, {cols});
        Held dgamma(DType::f32, {cols}), dbeta(DType::f32, {cols});
        x.randomize(random);
        dy.randomize(random, 1, 1);
        gamma.randomize(random);
        device.fill(rstd.view, 1.25f);
        device.fill(mean.view, 0.5f);
        device.bias_grad(dy.view, db.view, false);
        device.layernorm_backward({.dy = dy.view,
                                   .x = x.view,
                                   .gamma = gamma.view,
                                   .mean = mean.view,
                                   .rstd = rstd.view,
                                   .dx = dy.view,
                                   .dgamma = dgamma.view,
                                   .dbeta = dbeta.view});
        return {db.values(), dy.values(), dgamma.values(), dbeta.values()};
      });
    }
  }
  // Columns beyond a block's; one column.
  for (const int64_t cols : {1, 255, 256, 264, 2056}) {
    check_like_cpu(DType::bf16, 2e-5, [&](Device& device, std::mt19937& random) -> Outputs {
      Held dy(DType::bf16, {70, cols}), db(DType::f32, {cols});
      dy.randomize(random);
      db.randomize(random);
      device.bias_grad(dy.view, db.view, true);
      return {db.values()};
    });
  }
}

TEST_CASE("cuda: head norms of every number of lanes") {
  struct Case {
    int64_t rows, heads, dim;
  };
  // 8, 16 and 32 lanes per head, with and without idle ones, and beyond what 32 lanes hold.
  for (const Case c : {Case{70, 5, 8},
                       {9, 3, 32},
                       {9, 3, 40},
                       {9, 5, 64},
                       {9, 3, 72},
                       {9, 3, 80},
                       {9, 3, 96},
                       {9, 3, 128},
                       {5, 2, 136},
                       {5, 3, 256},
                       {1030, 1, 16},
                       {3, 2, 264},
                       {3, 2, 520},
                       {2, 40, 128},
                       {3, 1, 1030}}) {
    for (const DType type : kComputeTypes) {
      INFO(c.rows << " rows of " << c.heads << " x " << c.dim);
      check_like_cpu(type, 1e-5, [&](Device& device, std::mt19937& random) -> Outputs {
        const int64_t before = 16, cols = before + c.heads * c.dim + 8;
        Held x(type, {c.rows, cols}), raw(type, {c.rows, cols}), gamma(type, {c.dim});
        Held rstd(DType::f32, {c.rows, c.heads}), dgamma(DType::f32, {c.dim});
        x.randomize(random);
        gamma.randomize(random, 0.2, 1);
        device.head_norm_forward({.x = x.view,
                                  .raw = raw.view,
                                  .first_column = before,
                                  .heads = c.heads,
                                  .head_dim = c.dim,
                                  .gamma = gamma.view,
                                  .rstd = rstd.view});
        const std::vector<double> y = x.values();
        x.randomize(random);
        device.head_norm_backward({.dx = x.view,
                                   .raw = raw.view,
                                   .first_column = before,
                                   .heads = c.heads,
                                   .head_dim = c.dim,
                                   .gamma = gamma.view,
                                   .rstd = rstd.view,
                                   .dgamma = dgamma.view});
        return {y, raw.values(), rstd.values(), x.values(), dgamma.values()};
      });
    }
  }
}

TEST_CASE("cuda: norms of all heads together, of a warp's rows and of a block's") {
  struct Case {
    int64_t rows, columns;
  };
  // A lane has up to 16 packs of a row, or the row is a block's: from 2,056 (f32) or 4,104 columns
  // on, and from 513 without packs. More rows than a grid has teams; chunks of one row and of many.
  for (const Case c : {Case{200, 8},
                       {70, 40},
                       {33, 264},
                       {65, 512},
                       {9, 513},
                       {20, 1032},
                       {9, 2048},
                       {10, 2056},
                       {3, 4096},
                       {12, 4104},
                       {2, 5001},
                       {2, 16384}}) {
    for (const DType type : kComputeTypes) {
      INFO(c.rows << " rows of " << c.columns);
      check_like_cpu(type, 1e-5, [&](Device& device, std::mt19937& random) -> Outputs {
        const int64_t before = 16, cols = before + c.columns + 8;
        Held x(type, {c.rows, cols}), raw(type, {c.rows, cols}), gamma(type, {c.columns});
        Held squares(DType::f32, {c.rows}), products(DType::f32, {c.rows});
        Held dgamma(DType::f32, {c.columns});
        x.randomize(random);
        gamma.randomize(random, 0.2, 1);
        const float inverse = 1 / static_cast<float>(c.columns);
        const WideNorm forward = {.x = x.view,
                                  .raw = raw.view,
                                  .first_column = before,
                                  .columns = c.columns,
                                  .gamma = gamma.view,
                                  .squares = squares.view,
                                  .inverse = inverse};
        device.wide_norm_squares(forward);
        device.wide_norm_forward(forward);
        const std::vector<double> y = x.values();
        x.randomize(random);
        const WideNormBackward backward = {.dx = x.view,
                                           .raw = raw.view,
                                           .first_column = before,
                                           .columns = c.columns,
                                           .gamma = gamma.view,
                                           .squares = squares.view,
                                           .products = products.view,
                                           .dgamma = dgamma.view,
                                           .inverse = inverse};
        device.wide_norm_products(backward);
        device.wide_norm_backward(backward);
        return {y, raw.values(), squares.values(), products.values(), x.values(), dgamma.values()};
      });
    }
  }
}

TEST_CASE("cuda: cross-entropy of a warp's rows and of a block's") {
  struct Case {
    int64_t rows, columns, valid;
  };
  for (const Case c : {Case{200, 8, 5},
                       {70, 64, 64},
                       {9, 2048, 2041},
                       {9, 2049, 2047},
                       {9, 2056, 2056},
                       {20, 2064, 2050},
                       {3, 9000, 8191},
                       {3, 4104, 0}}) {
    for (const DType type : kComputeTypes) {
      INFO(c.rows << " x " << c.columns << " valid " << c.valid);
      check_like_cpu(type, 3e-6, [&](Device& device, std::mt19937& random) -> Outputs {
        Held logits(type, {c.rows, c.columns}), targets(DType::i32, {c.rows});
        Held row_max(DType::f32, {c.rows}), sum_exp(DType::f32, {c.rows});
        Held target_logit(DType::f32, {c.rows}), loss(DType::f32, {c.rows});
        logits.randomize(random, 4);
        targets.randomize_ids(random, 90, 100 + static_cast<int>(c.valid) + 5);
        targets.set(c.rows / 2, -1);
        targets.set(0, 100);
        targets.set(c.rows - 1, 99 + static_cast<double>(c.valid));
        const CrossEntropy args = {.logits = logits.view,
                                   .targets = targets.view,
                                   .first = 100,
                                   .valid = c.valid,
                                   .row_max = row_max.view,
                                   .sum_exp = sum_exp.view,
                                   .target_logit = target_logit.view,
                                   .loss = loss.view};
        if (c.valid == 0) {
          device.fill(row_max.view, 0);
        } else {
          device.cross_entropy_max(args);
        }
        device.cross_entropy_sum(args);
        const std::vector<double> sums = sum_exp.values();
        if (c.valid == 0) device.fill(sum_exp.view, 1);
        device.cross_entropy_loss(args);
        device.cross_entropy_backward(args, 0.5f);
        return {row_max.values(), sums, target_logit.values(), loss.values(), logits.values()};
      });
    }
  }
}

TEST_CASE("cuda: rows wider than a warp reaches and more of them than a grid has warps") {
  struct Case {
    int64_t rows, cols;
  };
  for (const Case c : {Case{200, 8}, {130, 24}, {5, 1032}, {3, 2055}}) {
    for (const DType type : kComputeTypes) {
      INFO(c.rows << " x " << c.cols);
      check_like_cpu(type, 2e-6, [&](Device& device, std::mt19937& random) -> Outputs {
        const Dropout dropout = dropout_in_test_memory(0.3f, 2, 40 * c.cols);
        const int64_t seq = c.rows / 3 + 1, first_row = 5;
        Held x(type, {c.rows, c.cols}), residual(type, {c.rows, c.cols}), bias(type, {c.cols});
        Held out(type, {c.rows, c.cols}), positions(type, {seq, c.cols});
        Held dpositions(DType::f32, {seq, c.cols}), y(type, {c.rows, c.cols});
        Held wide(type, {c.rows, 2 * c.cols}), dwide(type, {c.rows, 2 * c.cols});
        Held index(DType::i32, {c.rows}), weights(DType::f32, {c.rows});
        Held dweights(DType::f32, {c.rows});
        for (int64_t i = 0; i < c.rows; ++i) index.set(i, static_cast<double>(c.rows - 1 - i));
        weights.randomize(random);
        Outputs outputs;
        x.randomize(random);
        residual.randomize(random);
        bias.randomize(random);
        positions.randomize(random);
        wide.randomize(random);
        device.bias_dropout_add({.x = x.view,
                                 .bias = bias.view,
                                 .residual = residual.view,
                                 .out = out.view,
                                 .dropout = dropout,
                                 .first_row = first_row,
                                 .scale = 0.75f});
        outputs.push_back(out.values());
        device.dropout_backward({.dout = x.view,
                                 .dx = out.view,
                                 .dropout = dropout,
                                 .first_row = first_row,
                                 .scale = 0.75f});
        outputs.push_back(out.values());
        device.position_forward(x.view, positions.view, seq, out.view, dropout, first_row);
        outputs.push_back(out.values());
        device.position_backward(x.view, seq, out.view, dpositions.view, false, dropout, first_row);
        outputs.push_back(out.values());
        outputs.push_back(dpositions.values());
        device.gelu_exact_forward(x.view, y.view);
        outputs.push_back(y.values());
        device.gelu_exact_backward(residual.view, x.view, out.view);
        outputs.push_back(residual.values());
        outputs.push_back(out.values());
        for (const GatedUnit& unit : {GatedUnit{},
                                      {.gate = GateForm::gelu_tanh},
                                      {.gate = GateForm::silu, .offset = 1, .clamp = 1},
                                      {.gate = GateForm::quick_gelu, .offset = 1, .clamp = 1}}) {
          device.swiglu_forward({.x = wide.view, .y = y.view, .unit = unit});
          outputs.push_back(y.values());
          SwigluBackward backward = {
              .dy = x.view, .x = wide.view, .dx = dwide.view, .y = out.view, .unit = unit};
          device.swiglu_backward(backward);
          outputs.push_back(dwide.values());
          outputs.push_back(out.values());
          backward.y = {};
          backward.rows = {index.view, weights.view, dweights.view};
          device.swiglu_backward(backward);
          outputs.push_back(dwide.values());
          outputs.push_back(dweights.values());
        }
        device.add_row_products(
            {.rows = x.view, .vector = bias.view, .index = index.view, .sums = dweights.view});
        outputs.push_back(dweights.values());
        return outputs;
      });
    }
  }
}

TEST_CASE("cuda: rope of heads with whole packs and more rows than a grid has warps") {
  struct Part {
    int64_t dim, turned;
  };
  for (const Part part : {Part{8, 8},
                          {16, 16},
                          {24, 24},
                          {64, 64},
                          {128, 128},
                          {256, 256},
                          {64, 16},
                          {64, 8},
                          {36, 16},
                          {128, 64}}) {
    for (const DType type : kComputeTypes) {
      INFO(part.turned << " elements of heads of " << part.dim);
      check_like_cpu(type, 1e-6, [&](Device& device, std::mt19937& random) -> Outputs {
        const int64_t heads = 5, kv_heads = 2, rows = 70, seq = 33;
        Held qkv(type, {rows, (heads + 2 * kv_heads) * part.dim});
        Held table(DType::f32, {seq, part.turned});
        qkv.randomize(random);
        table.randomize(random);
        Rope args = {.qkv = qkv.view,
                     .heads = heads,
                     .kv_heads = kv_heads,
                     .head_dim = part.dim,
                     .table = table.view,
                     .seq = seq,
                     .first_row = 20};
        device.rope(args);
        const std::vector<double> turned = qkv.values();
        args.backward = true;
        device.rope(args);
        return {turned, qkv.values()};
      });
    }
  }
}

TEST_CASE("cuda: embedding gradients of many tokens in tables of one to three digits") {
  struct Case {
    int64_t n, rows, cols;
    int most;  // ids below this
  };
  // Chunks have 1,024 tokens at least, and there are at most 64 of them; a digit is 512 rows.
  for (const Case c : {Case{1, 1, 8, 1},
                       {1023, 511, 8, 511},
                       {1025, 512, 8, 512},
                       {3000, 513, 3, 520},
                       {3000, 5, 24, 6},
                       {70000, 700, 1, 720},
                       {2500, 270000, 4, 270001},
                       {40, 3, 2056, 3}}) {
    for (const int64_t first : {0, 2}) {
      INFO(c.n << " tokens, table " << c.rows << " x " << c.cols << ", first id " << first);
      check_like_cpu(DType::bf16, 0, [&](Device& device, std::mt19937& random) -> Outputs {
        Held tokens(DType::i32, {c.n}), dout(DType::bf16, {c.n, c.cols});
        Held dtable(DType::f32, {c.rows, c.cols}), out(DType::bf16, {c.n, c.cols});
        Held table(DType::bf16, {c.rows, c.cols});
        tokens.randomize_ids(random, -1, c.most);
        // A few ids that are everywhere.
        for (int64_t i = 0; i < c.n; i += 3) tokens.set(i, static_cast<double>(i % 2));
        dout.randomize(random);
        device.fill(dtable.view, 0.5f);
        device.fill(table.view, 3);
        device.embedding_backward(tokens.view, dout.view, first, dtable.view);
        device.embedding_forward(tokens.view, table.view, first, out.view);
        return {dtable.values(), out.values()};
      });
    }
  }
}

TEST_CASE("cuda: what few bytes of the host are copied as") {
  EmulatedCuda device;
  for (const int64_t bytes : {1, 7, 16, 63, 64, 65}) {
    INFO(bytes << " bytes");
    std::vector<uint8_t> host(static_cast<size_t>(bytes));
    for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<uint8_t>(i + 1);
    Held to(DType::u8, {bytes});  // with a guard behind it
    device.copy_from_host(to.view, host.data());
    CHECK(to.bytes() == host);
  }
}

TEST_CASE("cuda: sums and searches longer than one block") {
  for (const int64_t n : {1, 255, 8192, 8193, 70001, 1024 * 8192 + 3}) {
    INFO("n " << n);
    check_like_cpu(DType::f32, 1e-12, [&](Device& device, std::mt19937& random) -> Outputs {
      Held x(DType::f32, {n}), out(DType::f64, {1});
      // Exact in f32 and in any order.
      for (int64_t i = 0; i < n; i += 1 + i / 100) {
        x.set(i, static_cast<double>(random() % 1024));
      }
      device.sum(x.view, out.view, false);
      Outputs outputs = {out.values()};
      device.sum(x.view, out.view, true);
      outputs.push_back(out.values());
      const double whole = device.all_finite(x.view);
      x.set(n - 1, INFINITY);
      outputs.push_back({whole, device.all_finite(x.view) ? 1.0 : 0.0});
      return outputs;
    });
  }
}

}  // namespace mtl::test
