// The device as a whole: threads, memory, its name, and that results depend on no thread count.
#include <cstdlib>
#include <omp.h>
#include <sched.h>

#include "common/error.h"
#include "runtime/device/ops_test.h"

namespace mtl::test {

namespace {

// The ops of GPT-2 and of training (matmul and attention have their own tests) on awkward sizes;
// all bytes that they wrote.
std::vector<uint8_t> outputs_of_common_ops(Device& device, DType type) {
  std::mt19937 random(42);
  std::vector<uint8_t> bytes;
  const auto keep = [&](const Held& x) {
    const std::vector<uint8_t> b = x.bytes();
    bytes.insert(bytes.end(), b.begin(), b.end());
  };
  const int64_t batch = 3, seq = 67, rows = batch * seq, cols = 257;
  const Dropout dropout = dropout_in_test_memory(0.2f, 2, seq * cols);
  Held x(type, {rows, cols}), y(type, {rows, cols}), out(type, {rows, cols});
  Held gamma(type, {cols}), beta(type, {cols}), mean(DType::f32, {rows}), rstd(DType::f32, {rows});
  Held dgamma(DType::f32, {cols}), dbeta(DType::f32, {cols});
  x.randomize(random);
  y.randomize(random);
  gamma.randomize(random);
  beta.randomize(random);
  device.scale(x.view, 1.7f);
  device.add(x.view, y.view);
  keep(x), keep(y);
  device.bias_grad(y.view, dbeta.view, false);
  keep(dbeta);
  device.layernorm_forward({.x = x.view,
                            .gamma = gamma.view,
                            .beta = beta.view,
                            .y = out.view,
                            .mean = mean.view,
                            .rstd = rstd.view});
  keep(out), keep(mean), keep(rstd);
  device.layernorm_backward({.dy = y.view,
                             .x = x.view,
                             .gamma = gamma.view,
                             .mean = mean.view,
                             .rstd = rstd.view,
                             .dx = out.view,
                             .dgamma = dgamma.view,
                             .dbeta = dbeta.view,
                             .add_to_dx = true,
                             .accumulate = false});
  keep(out), keep(dgamma), keep(dbeta);
  Held positions(type, {seq, cols}), dpositions(DType::f32, {seq, cols});
  positions.randomize(random);
  device.position_forward(x.view, positions.view, seq, out.view, dropout, 5);
  keep(out);
  device.position_backward(y.view, seq, out.view, dpositions.view, false, dropout, 5);
  keep(out), keep(dpositions);
  device.bias_dropout_add({.x = x.view,
                           .bias = gamma.view,
                           .residual = y.view,
                           .out = out.view,
                           .dropout = dropout,
                           .first_row = 9});
  keep(out);
  device.dropout_backward({.dout = x.view, .dx = out.view, .dropout = dropout, .first_row = 9});
  keep(out);
  Held tokens(DType::i32, {rows}), table(type, {40, cols}), dtable(DType::f32, {40, cols});
  tokens.randomize_ids(random, 0, 50);
  table.randomize(random);
  device.embedding_forward(tokens.view, table.view, 3, out.view);
  keep(out);
  device.embedding_backward(tokens.view, x.view, 3, dtable.view);
  keep(dtable);
  Held sum_exp(DType::f32, {rows}), target_logit(DType::f32, {rows}), loss(DType::f32, {rows});
  const CrossEntropy entropy = {.logits = x.view,
                                .targets = tokens.view,
                                .first = 0,
                                .valid = cols - 3,
                                .row_max = mean.view,
                                .sum_exp = sum_exp.view,
                                .target_logit = target_logit.view,
                                .loss = loss.view};
  device.cross_entropy_max(entropy);
  device.cross_entropy_sum(entropy);
  device.cross_entropy_loss(entropy);
  device.cross_entropy_backward(entropy, 0.5f);
  keep(x), keep(mean), keep(sum_exp), keep(target_logit), keep(loss);
  const int64_t n = 50001;
  Held master(type == DType::f16 ? DType::f32 : DType::u16, {n}), m(DType::f32, {n}),
      v(DType::f32, {n}), grad(DType::f32, {n});
  Held weights(type == DType::f16 ? type : DType::bf16, {n}),
      partials(DType::f64, {(n + 4095) / 4096}), wide(DType::f32, {n});
  master.randomize(random);
  grad.randomize(random);
  const HeldPieces pieces(n);
  const HeldFactor factor;
  device.sum_squares({.pieces = pieces.view, .x = grad.view, .partials = partials.view});
  device.adamw({.pieces = pieces.view,
                .master = master.view,
                .exp_avg = m.view,
                .exp_avg_sq = v.view,
                .grad = grad.view,
                .weights = weights.view,
                .factor = factor.view,
                .lr = 0.01f,
                .weight_decay = 0.1f});
  keep(master), keep(m), keep(v), keep(weights), keep(partials);
  device.sgd({.pieces = pieces.view,
              .master = master.view,
              .momentum_buffer = m.view,
              .grad = grad.view,
              .weights = weights.view,
              .factor = factor.view,
              .lr = 0.01f,
              .weight_decay = 0.1f});
  keep(master), keep(m), keep(weights);
  bytes.push_back(device.all_finite(weights.view));
  device.cast(weights.view, wide.view);
  device.cast(grad.view, weights.view);
  keep(wide), keep(weights);
  return bytes;
}

// The ops of the other model families.
std::vector<uint8_t> outputs_of_family_ops(Device& device, DType type) {
  std::mt19937 random(43);
  std::vector<uint8_t> bytes;
  const auto keep = [&](const Held& x) {
    const std::vector<uint8_t> b = x.bytes();
    bytes.insert(bytes.end(), b.begin(), b.end());
  };
  const int64_t rows = 201, seq = 150, heads = 5, kv_heads = 3, dim = 38;
  const int64_t cols = (heads + 2 * kv_heads) * dim, width = cols / 2;
  Held x(type, {rows, cols}), dy(type, {rows, cols}), y(type, {rows, cols});
  Held gamma(type, {cols}), rstd(DType::f32, {rows, heads}), dgamma(DType::f32, {cols});
  Held half(type, {rows, width}), remade(type, {rows, width}), table(DType::f32, {seq, dim});
  Held index(DType::i32, {rows}), weights(DType::f32, {rows}), dweights(DType::f32, {rows});
  x.randomize(random);
  dy.randomize(random);
  gamma.randomize(random);
  half.randomize(random);
  table.randomize(random);
  weights.randomize(random);
  const Tensor row_rstd = rstd.view.slice(0, rows);
  device.copy(x.view, y.view);
  keep(y);
  device.layernorm_forward(
      {.x = x.view, .gamma = gamma.view, .beta = {}, .y = y.view, .mean = {}, .rstd = row_rstd});
  keep(y), keep(rstd);
  device.layernorm_backward({.dy = dy.view,
                             .x = x.view,
                             .gamma = gamma.view,
                             .mean = {},
                             .rstd = row_rstd,
                             .dx = y.view,
                             .dgamma = dgamma.view,
                             .dbeta = {}});
  keep(y), keep(dgamma);
  device.gelu_forward(x.view, y.view);
  keep(y);
  device.swiglu_backward({.dy = half.view, .x = x.view, .dx = y.view, .y = remade.view});
  keep(y), keep(remade);
  for (int64_t i = 0; i < rows; ++i) index.set(i, static_cast<double>(rows - 1 - i));
  device.swiglu_backward({.dy = half.view,
                          .x = x.view,
                          .dx = y.view,
                          .rows = {index.view, weights.view, dweights.view}});
  keep(y), keep(dweights);
  device.swiglu_forward({.x = x.view, .y = half.view});
  keep(half);
  const Tensor head_gamma = gamma.view.slice(0, dim), head_dgamma = dgamma.view.slice(0, dim);
  device.head_norm_forward({.x = x.view,
                            .raw = y.view,
                            .first_column = dim,
                            .heads = heads,
                            .head_dim = dim,
                            .gamma = head_gamma,
                            .rstd = rstd.view});
  keep(x), keep(y), keep(rstd);
  device.head_norm_backward({.dx = dy.view,
                             .raw = y.view,
                             .first_column = dim,
                             .heads = heads,
                             .head_dim = dim,
                             .gamma = head_gamma,
                             .rstd = rstd.view,
                             .dgamma = head_dgamma});
  keep(dy), keep(dgamma);
  const int64_t wide = 3 * dim + 5;
  Held squares(DType::f32, {rows}), products(DType::f32, {rows});
  const WideNorm wide_forward = {.x = x.view,
                                 .raw = y.view,
                                 .first_column = dim,
                                 .columns = wide,
                                 .gamma = gamma.view.slice(0, wide),
                                 .squares = squares.view,
                                 .inverse = 0.5f / static_cast<float>(wide)};
  device.wide_norm_squares(wide_forward);
  device.wide_norm_forward(wide_forward);
  keep(squares), keep(x), keep(y);
  const WideNormBackward wide_backward = {.dx = dy.view,
                                          .raw = y.view,
                                          .first_column = dim,
                                          .columns = wide,
                                          .gamma = gamma.view.slice(0, wide),
                                          .squares = squares.view,
                                          .products = products.view,
                                          .dgamma = dgamma.view.slice(0, wide),
                                          .inverse = 0.5f / static_cast<float>(wide),
                                          .accumulate = true};
  device.wide_norm_products(wide_backward);
  device.wide_norm_backward(wide_backward);
  keep(products), keep(dy), keep(dgamma);
  device.rope({.qkv = x.view,
               .heads = heads,
               .kv_heads = kv_heads,
               .head_dim = dim,
               .table = table.view,
               .seq = seq,
               .first_row = 77});
  keep(x);
  const int64_t rope_dim = 6, value_dim = 25, pair = dim - rope_dim + value_dim;
  Held latent_table(DType::f32, {seq, rope_dim});
  Held queries(type, {rows, heads * dim}), pairs(type, {rows, heads * pair}),
      latents(type, {rows, 9});
  Held qkv(type, {rows, heads * (2 * dim + value_dim)});
  for (Held* const held : {&latent_table, &queries, &pairs, &latents}) held->randomize(random);
  LatentHeads latent = {.queries = queries.view,
                        .pairs = pairs.view,
                        .latents = latents.view,
                        .qkv = qkv.view,
                        .heads = heads,
                        .head_dim = dim,
                        .rope_dim = rope_dim,
                        .value_dim = value_dim,
                        .table = latent_table.view,
                        .seq = seq};
  device.latent_heads(latent);
  keep(qkv);
  latent.backward = true;
  device.latent_heads(latent);
  keep(queries), keep(pairs), keep(latents);
  device.copy_columns({.from = queries.view,
                       .to = x.view,
                       .from_column = 3,
                       .to_column = 1,
                       .columns = heads * dim - 3});
  keep(x);
  Held positions(type, {seq, cols}), dpositions(DType::f32, {seq, cols});
  positions.randomize(random);
  const Dropout dropout = dropout_in_test_memory(0.2f, 1, seq * cols);
  device.position_forward(x.view, positions.view, seq, y.view, dropout, 77);
  keep(y);
  device.position_backward(dy.view, seq, y.view, dpositions.view, true, dropout, 77);
  keep(y), keep(dpositions);
  return bytes;
}

int threads_of(const std::string& description) {
  int threads = 0;
  REQUIRE(std::sscanf(description.c_str(), "cpu: %d thread", &threads) == 1);
  return threads;
}

}  // namespace

TEST_CASE("results are the same bits with 1, 2 and 3 threads, and again") {
  for (const Isa isa : isas_of_this_machine()) {
    for (const DType type : kComputeTypes) {
      std::vector<uint8_t> expected;
      for (const int threads : {1, 2, 3, 2}) {
        CpuDevice device(threads, isa);
        INFO(device.description());
        CHECK(omp_get_max_threads() == threads);
        std::vector<uint8_t> bytes = outputs_of_common_ops(device, type);
        const std::vector<uint8_t> more = outputs_of_family_ops(device, type);
        bytes.insert(bytes.end(), more.begin(), more.end());
        if (expected.empty()) expected = bytes;
        CHECK(bytes == expected);
      }
    }
  }
}

TEST_CASE("the thread count: argument, else OMP_NUM_THREADS, else the affinity mask") {
  cpu_set_t mask;
  REQUIRE(sched_getaffinity(0, sizeof mask, &mask) == 0);
  // OpenMP reads the variable once, when the program starts.
  const char* variable = std::getenv("OMP_NUM_THREADS");
  const int expected = variable ? std::atoi(variable) : CPU_COUNT(&mask);
  CHECK(threads_of(make_cpu_device(3)->description()) == 3);
  CHECK(threads_of(make_cpu_device()->description()) == expected);
  CHECK(threads_of(make_cpu_device(7)->description()) == 7);
  CHECK(threads_of(make_cpu_device()->description()) == expected);
}

TEST_CASE("the description names threads, instruction set and library") {
  CHECK(CpuDevice(1, Isa::base).description().starts_with("cpu: 1 thread, base, bf16 by "));
  const std::string text = CpuDevice(2, Isa::base).description();
  CHECK(text.starts_with("cpu: 2 threads, "));
  CHECK(text.find("(oneDNN 2.") != std::string::npos);
}

TEST_CASE("memory is aligned, zeroed and copied") {
  const auto device = make_cpu_device(2);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4097}, size_t{5} << 20}) {
    auto* p = static_cast<uint8_t*>(device->allocate(bytes));
    REQUIRE(p != nullptr);
    CHECK(reinterpret_cast<uintptr_t>(p) % 4096 == 0);
    CHECK(std::all_of(p, p + bytes, [](uint8_t x) { return x == 0; }));
    std::memset(p, 1, bytes);
    device->free(p);
  }
  device->free(nullptr);
  const int64_t n = (3 << 20) + 1;
  std::vector<uint8_t> from(n), to(n);
  std::mt19937 random(1);
  for (uint8_t& x : from) x = static_cast<uint8_t>(random());
  const Tensor tensor(device->allocate(static_cast<size_t>(n)), DType::u8, {n});
  device->copy_from_host(tensor, from.data());
  device->synchronize();
  device->copy_to_host(to.data(), tensor);
  CHECK(from == to);
}

TEST_CASE("memory that the system does not have is an error that says so") {
  const auto device = make_cpu_device(1);
  try {
    device->allocate(size_t{1} << 62);
    FAIL("allocated 4 EiB");
  } catch (const Error& error) {
    CHECK(error.exit() == Exit::out_of_memory);
    CHECK(error.diagnostics()[0].code == "device.out_of_memory");
    CHECK(!error.diagnostics()[0].help.empty());
  }
}

}  // namespace mtl::test
