// The GPU's device itself (runtime/device/cuda/cuda_device.cpp) over the CUDA of tests/host_cuda:
// copies, memory, recordings, and what becomes of products that cuBLASLt refuses.
#if defined(MTL_TEST_CUDA_LIBRARY)

#include "runtime/device/cuda/cuda_device.h"

#include <cmath>
#include <cuda_runtime_api.h>
#include <numeric>

#include "common/error.h"
#include "host_cuda/products.h"
#include "runtime/device/cuda/lt_matmul.h"
#include "runtime/device/ops_test.h"
#include "runtime/plan/memory/gpu_memory.h"
#include "support/fake_cublaslt.h"
#include "support/layouts.h"
#include "support/specs.h"
#include "support/temp_dir.h"
#include "support/variable.h"

using namespace mtl;
using namespace mtl::test;

namespace {

std::unique_ptr<Device> make_gpu() {
  fake_cublaslt = {};
  host_cuda::carry_out_products();
  return cuda::make_cuda_device(0, "a GPU on the host");
}

class Values {
 public:
  Values(Device& device, std::vector<int64_t> shape, const std::vector<float>& values = {})
      : device_(device), view(nullptr, DType::f32, shape) {
    view.data = device.allocate(static_cast<size_t>(view.bytes()));
    if (!values.empty()) device.copy_from_host(view, values.data());
  }
  ~Values() { device_.free(view.data); }
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;
  std::vector<float> values() const {
    std::vector<float> all(static_cast<size_t>(view.numel()));
    device_.copy_to_host(all.data(), view);
    return all;
  }

 private:
  Device& device_;

 public:
  Tensor view;
};

std::vector<float> count_from(float first, size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

size_t free_now() {
  size_t free = 0, total = 0;
  REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
  return free;
}
// Bytes that the GPU has given since so many were free.
int64_t taken_since(size_t before) {
  return static_cast<int64_t>(before) - static_cast<int64_t>(free_now());
}

}  // namespace

TEST_CASE(
    "cuda device: copies of every size arrive, also larger than all that is pinned for them") {
  const auto gpu = make_gpu();
  for (const size_t count : {size_t{1}, size_t{16}, size_t{17}, size_t{1000}, size_t{262144},
                             size_t{262145}, size_t{5} << 20}) {
    CAPTURE(count);
    const std::vector<float> values = count_from(1, count);
    const Values x(*gpu, {static_cast<int64_t>(count)}, values);
    CHECK(x.values() == values);
  }
  const Values fresh(*gpu, {1000});
  CHECK(fresh.values() == std::vector<float>(1000, 0.0f));
}

TEST_CASE("cuda device: what is replayed has the bits of what is enqueued") {
  const auto gpu = make_gpu();
  const Values x(*gpu, {300, 64}, count_from(0, size_t{300} * 64)), sums(*gpu, {64});
  const auto pass = [&] {
    gpu->bias_grad(x.view, sums.view, true);
    gpu->scale(x.view, 0.5f);
  };
  std::vector<float> expected;
  {
    const Values again(*gpu, {300, 64}, count_from(0, size_t{300} * 64)), its_sums(*gpu, {64});
    for (int i = 0; i < 5; ++i) {
      gpu->bias_grad(again.view, its_sums.view, true);
      gpu->scale(again.view, 0.5f);
    }
    expected = its_sums.values();
  }
  REQUIRE(gpu->replays());
  gpu->replay("pass", pass);  // enqueued
  gpu->replay("pass", pass);  // recorded
  for (int i = 0; i < 3; ++i) gpu->replay("pass", pass);
  CHECK(sums.values() == expected);
}

TEST_CASE(
    "cuda device: while a pass is recorded nothing is waited for, and trouble ends recording") {
  const auto gpu = make_gpu();
  const Values x(*gpu, {8}, count_from(1, 8));
  const auto clock = gpu->make_clock();
  int calls = 0;
  const auto pass = [&] {
    gpu->scale(x.view, 2);
    if (calls++ == 1) {
      CHECK_FALSE(clock->mark());
      CHECK_THROWS_AS(gpu->synchronize(), Error);
      CHECK_THROWS_AS(gpu->allocate(64), Error);
      CHECK_THROWS_AS(x.values(), Error);
      gpu->synchronize();  // and this one ends the recording
    }
  };
  CHECK(clock->mark());
  gpu->replay("pass", pass);
  CHECK(clock->mark());
  // What was recorded of it is not done; it is enqueued once more, as everything is from now on.
  gpu->replay("pass", pass);
  CHECK(calls == 3);
  CHECK(clock->take().size() == 1);
  CHECK(x.values() == std::vector<float>{4, 8, 12, 16, 20, 24, 28, 32});
}

// The heuristics of newer cuBLASLt fail there (fake_cublaslt.h).
TEST_CASE("cuda device: of a pass that is recorded all algorithms are known") {
  const auto gpu = make_gpu();
  // Numbers of rows that share an algorithm, one of them in vain.
  fake_cublaslt.does = [](const LtCall& call) { return call.gemm.columns != 66; };
  const Values a(*gpu, {128, 8}, count_from(0, size_t{128} * 8)), b(*gpu, {8, 16}),
      c(*gpu, {128, 16});
  const Values bias(*gpu, {16}, count_from(0, 16));
  int passes = 0;
  const auto pass = [&] {
    ++passes;
    for (const int64_t rows : {65, 66, 67, 128, 3}) {
      const auto first = [&](const Values& of) { return of.view.row_slice(0, rows); };
      gpu->matmul({.a = first(a), .b = b.view, .c = first(c), .bias = bias.view});
    }
  };
  gpu->replay("pass", pass);
  const int asked = fake_cublaslt.queries;
  CHECK(asked > 0);
  for (int i = 0; i < 3; ++i) gpu->replay("pass", pass);
  CHECK(passes == 2);
  CHECK(fake_cublaslt.queries == asked);
  CHECK(c.values()[17] == 1);
  fake_cublaslt = {};
}

TEST_CASE("cuda device: memory that there is not is told, and what there is goes on") {
  const auto gpu = make_gpu();
  Diagnostic why;
  try {
    gpu->allocate(size_t{1} << 40);
  } catch (const Error& error) {
    CHECK(error.exit() == Exit::out_of_memory);
    why = error.diagnostics().front();
  }
  CHECK(why.code == "device.out_of_memory");
  CHECK(why.what.find("NVIDIA H200 gives no 1024.0 GiB") != std::string::npos);
  const Values x(*gpu, {3}, {1, 2, 3});
  gpu->scale(x.view, 2);
  CHECK(x.values() == std::vector<float>{2, 4, 6});
}

TEST_CASE("cuda device: a copy beyond what was allocated is refused") {
  const auto gpu = make_gpu();
  const Values x(*gpu, {1000}, count_from(1, 1000));
  // Further than what the device aligns memory to.
  const Tensor longer(x.view.data, DType::f32, {4000});
  std::vector<float> values(4000);
  CHECK_THROWS_AS(gpu->copy_to_host(values.data(), longer), Error);
  CHECK_THROWS_AS(gpu->copy_from_host(longer, values.data()), Error);
  CHECK(x.values() == count_from(1, 1000));
}

TEST_CASE("cuda device: a product that cuBLASLt names and refuses is made in another way") {
  const auto gpu = make_gpu();
  const Values a(*gpu, {4, 8}, count_from(0, 32)), b(*gpu, {8, 16}, count_from(-60, 128));
  const Values bias(*gpu, {16}, count_from(100, 16)), c(*gpu, {4, 16});
  const Matmul product = {.a = a.view, .b = b.view, .c = c.view, .bias = bias.view};
  gpu->matmul(product);
  const std::vector<float> expected = c.values();
  CHECK(expected[0] == doctest::Approx(100 + 0 * -60 + 1 * -44 + 2 * -28 + 3 * -12 + 4 * 4 +
                                       5 * 20 + 6 * 36 + 7 * 52));

  // The first algorithm, then every product with a bias in it: the sum comes behind the product.
  const auto other = make_gpu();
  int refused = 0;
  fake_cublaslt.algorithms = [](const cuda::LtGemm&) { return 2; };
  fake_cublaslt.refuses = [&](const LtCall& call) {
    const bool no = call.place == 0 || call.gemm.epilogue != cuda::LtEpilogue::none;
    refused += no ? 1 : 0;
    return no;
  };
  gpu->fill(c.view, 0);
  gpu->synchronize();
  other->matmul(product);
  other->synchronize();
  CHECK(c.values() == expected);
  CHECK(refused == 3);

  fake_cublaslt.refuses = [](const LtCall&) { return true; };
  const Values narrow(*gpu, {4, 5});
  const Values factor(*gpu, {8, 5}, count_from(0, 40));
  CHECK_THROWS_AS(other->matmul({.a = a.view, .b = factor.view, .c = narrow.view}), Error);
  fake_cublaslt = {};
}

TEST_CASE("cuda device: a product gets the algorithm that the file of MTL_PRODUCTS has for it") {
  const auto gpu = make_gpu();
  const Values a(*gpu, {4, 8}, count_from(0, 32)), b(*gpu, {8, 16}), c(*gpu, {4, 16});
  const Matmul product = {.a = a.view, .b = b.view, .c = c.view};
  const cuda::LtOperands operands = {b.view.data, a.view.data, c.view.data};
  fake_cublaslt.algorithms = [](const cuda::LtGemm&) { return 3; };
  cuda::LtMatmul measuring;
  const cuda::LtGemm gemm = cuda::plan_matmul(product, cuda::Fuse::all).gemm;
  const auto candidates = measuring.candidates(gemm, operands, 64);
  REQUIRE(candidates.size() == 3);
  REQUIRE(measuring.take(gemm, operands, candidates[2]));
  cuda::ProductChoices choices{
      .gpu = "NVIDIA H200", .cublaslt = cuda::LtMatmul::version(), .algorithms = {}};
  choices.algorithms.insert(measuring.choice(gemm, operands));

  const TempDir folder;
  for (const bool here : {true, false}) {
    CAPTURE(here);
    if (!here) choices.gpu = "NVIDIA H100 80GB HBM3";
    const std::string file = folder.file("choices", cuda::to_text(choices));
    const Variable variable("MTL_PRODUCTS", file);
    const auto chosen = make_gpu();
    const std::string words = here ? ", products by " + file + " (1)" : "";
    CHECK(chosen->description() == "a GPU on the host" + words);
    int place = -1;
    fake_cublaslt.algorithms = [](const cuda::LtGemm&) { return 3; };
    fake_cublaslt.carries_out = [&](const LtCall& call, CUstream_st*) { place = call.place; };
    chosen->matmul(product);
    CHECK(place == (here ? 2 : 0));
  }
  fake_cublaslt = {};
}

TEST_CASE("cuda device: the sums of an operand come from the product where that was measured") {
  const auto gpu = make_gpu();
  const Values dy(*gpu, {8, 4}, count_from(-9, 32)), x(*gpu, {8, 16}, count_from(-60, 128));
  const Values dw(*gpu, {4, 16}), db(*gpu, {4});
  Matmul product = {.a = dy.view, .b = x.view, .c = dw.view, .transpose_a = true};
  product.sums_of_a = db.view;
  cuda::ProductChoices choices{
      .gpu = "NVIDIA H200", .cublaslt = cuda::LtMatmul::version(), .algorithms = {}};
  cuda::LtMatmul measuring;
  for (const bool accumulate : {false, true}) {
    product.accumulate = accumulate;
    const cuda::MatmulPlan plan =
        cuda::plan_matmul(product, cuda::Fuse::nothing, cuda::Sums::in_product);
    REQUIRE(plan.sums_in_gemm);
    choices.algorithms.insert(measuring.choice(plan.gemm, {.first = x.view.data,
                                                           .second = dy.view.data,
                                                           .result = dw.view.data,
                                                           .bias = db.view.data}));
  }
  const TempDir folder;
  const std::string file = folder.file("choices", cuda::to_text(choices));

  std::vector<float> expected_dw, expected_db;
  int with_sums = 0;
  // Behind the product; in it; and where cuBLASLt refuses it, behind it again.
  for (const int way : {0, 1, 2}) {
    CAPTURE(way);
    const Variable variable("MTL_PRODUCTS", way == 0 ? "" : file);
    const auto device = make_gpu();
    with_sums = 0;
    fake_cublaslt.refuses = [&](const LtCall& call) {
      if (call.gemm.epilogue != cuda::LtEpilogue::sums_of_second) return false;
      ++with_sums;
      return way == 2;
    };
    for (const bool accumulate : {false, true, true}) {
      product.accumulate = accumulate;
      device->matmul(product);
    }
    device->synchronize();
    if (way == 0) {
      expected_dw = dw.values();
      expected_db = db.values();
      // Three times the sum of its column.
      CHECK(expected_db[1] == 3 * (8 * -8 + 4 * 28));
    }
    CHECK(dw.values() == expected_dw);
    CHECK(db.values() == expected_db);
    // Refused: what was measured and what the heuristics name, of two products.
    CHECK(with_sums == (way == 0 ? 0 : way == 1 ? 3 : 4));
    gpu->fill(dw.view, 7);
    gpu->fill(db.view, 7);
    gpu->synchronize();
  }
  fake_cublaslt = {};
}

TEST_CASE("cuda device: a trainer takes what its plan says, and the next one no more") {
  constexpr int32_t kVocab = 96;
  constexpr int64_t kAlignment = 4096;  // of what is allocated, in front of it
  const auto tokens = markov_tokens(1 << 16, kVocab);
  TrainSpec gpt = spec_with({.layers = 2,
                             .hidden = 128,
                             .heads = 2,
                             .global_batch = 4,
                             .micro_batch = 2,
                             .seq_len = 64,
                             .steps = 2});
  gpt.model.max_seq = 64;
  gpt.precision.dtype = "bf16";
  TrainSpec llama = gpt;
  use_llama_blocks(llama);
  llama.model.kv_heads = 1;
  llama.recompute.mode = "full";
  // Sums of dQ that the arena has no room for.
  TrainSpec wide = gpt;
  wide.model.layers = 1;
  wide.model.ffn = 64;
  wide.train.global_batch = wide.train.micro_batch = 32;
  TrainSpec float8 = gpt;
  float8.precision.dtype = "fp8";
  TrainSpec mixture = llama;
  mixture.model.ffn = 64;
  mixture.model.moe.experts = 4;
  TrainSpec f32 = gpt;
  f32.precision.dtype = "fp32";

  const auto gpu = make_gpu();
  const size_t before = free_now();
  for (const TrainSpec& spec : {gpt, wide, llama, float8, mixture, f32}) {
    CAPTURE(spec.precision.dtype);
    CAPTURE(spec.train.micro_batch);
    ResolvedSpec resolved;
    resolved.spec = spec;
    Diagnostics diagnostics;
    const Plan plan = make_plan(resolved, {.vocab = kVocab}, 1, diagnostics);
    diagnostics.throw_if_errors();
    const GpuMemory beside = gpu_memory(plan.stages.front().kernels, true);
    CHECK((beside.scratch > kernel_scratch::kPieceBytes) == (spec.train.micro_batch == 32));
    CHECK(gpu->scratch_for(plan.stages.front().kernels) == beside.scratch);
    const auto world = make_self_world();
    {
      Trainer trainer(plan, spec, *gpu, *world);
      CHECK(taken_since(before) == plan.total_bytes() + kAlignment + beside.scratch);
      trainer.initialise();
      const Sampler sampler(tokens->size(), spec.train.seq_len, SampleOrder::random, 1);
      for (int64_t step = 0; step < spec.train.steps; ++step) {
        CHECK(std::isfinite(trainer.step(step, *tokens, sampler, {}).loss));
      }
      CHECK(taken_since(before) == plan.total_bytes() + kAlignment + beside.scratch);
    }
    CHECK(taken_since(before) == beside.scratch);
  }
  fake_cublaslt = {};
}

TEST_CASE("cuda device: before the first trainer it has what products take") {
  const size_t before = free_now();
  const auto gpu = make_gpu();
  // A word for all_finite() as well.
  CHECK(taken_since(before) >= kProductWorkspaceBytes);
  CHECK(taken_since(before) <= kProductWorkspaceBytes + 2 * 4096);
}

#endif
