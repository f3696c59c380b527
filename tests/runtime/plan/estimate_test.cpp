// accelerate's numbers: accelerate 0.32.1 over transformers 4.46.3, calculate_maximum_sizes() and
// estimate_training_usage() of AutoModel.from_config(). And the states of a plan under ZeRO.
#include "runtime/plan/forecast/estimate.h"

#include <cmath>

#include <doctest/doctest.h>

#include "runtime/plan/plan.h"
#include "runtime/recipes.h"

using namespace mtl;

namespace {

// As accelerate prints it.
double rounded(double bytes, double unit) {
  return std::round(bytes / unit * 100) / 100;
}
constexpr double kMB = 1024.0 * 1024, kGB = 1024 * kMB, kTB = 1024 * kGB;

}  // namespace

TEST_CASE("the table is accelerate's") {
  struct Row {
    const char* recipe;
    double unit, largest, total_unit, total, training_unit, training, half_unit, half;
  };
  // float32: largest layer, total size, training using Adam; float16: training.
  const Row rows[] = {
      {"gpt2-124m", kMB, 147.24, kMB, 476.2, kGB, 1.86, kMB, 952.4},
      {"gpt2-1.5b", kMB, 306.74, kGB, 5.81, kGB, 23.23, kGB, 11.62},
      {"llama3-8b", kGB, 1.96, kGB, 27.96, kGB, 111.83, kGB, 55.92},
      {"llama3-70b", kGB, 3.91, kGB, 258.92, kTB, 1.01, kGB, 517.84},
      {"llama3-405b", kGB, 11.88, kTB, 1.47, kTB, 5.88, kTB, 2.94},
      // Its 177.49 GB have 4 GB of caches in them (rotary tables, 131,072 positions), which are no
      // weights and which later versions do not keep: 173.49 without.
      {"mixtral-8x7b", kGB, 5.41, kGB, 173.49, kGB, 693.97, kGB, 346.99},
  };
  for (const Row& row : rows) {
    CAPTURE(row.recipe);
    const MemoryEstimate estimate = estimate_memory(find_recipe(row.recipe).shape, 8, DType::bf16);
    const DtypeEstimate& full = estimate.dtypes[0];
    CHECK(full.dtype == "float32");
    CHECK(rounded(full.largest_layer, row.unit) == doctest::Approx(row.largest));
    CHECK(rounded(full.total, row.total_unit) == doctest::Approx(row.total));
    CHECK(rounded(*full.training, row.training_unit) == doctest::Approx(row.training));
    CHECK(rounded(*estimate.dtypes[1].training, row.half_unit) == doctest::Approx(row.half));
    CHECK(estimate.dtypes[2].total == full.total / 4);
    CHECK(estimate.dtypes[3].largest_layer == full.largest_layer / 8);
    CHECK_FALSE(estimate.dtypes[2].training);
  }
}

TEST_CASE("GPT-2's sum is accelerate's to the byte") {
  // 4 bytes for each of 124,439,808 weights, and 12 masks.
  const MemoryEstimate estimate = estimate_memory(find_recipe("gpt2-124m").shape, 1, DType::f32);
  CHECK(estimate.dtypes[0].total == 499332144.0);
  CHECK(estimate.dtypes[0].largest_layer == 154389504.0);
  CHECK(estimate.largest_layer == 50257 * 768);  // the embedding
}

TEST_CASE("ZeRO divides what its stages say") {
  const MemoryEstimate mixed = estimate_memory(find_recipe("llama3-8b").shape, 64, DType::bf16);
  const double p = 8030261248;
  CHECK(mixed.parameters == 8030261248);
  CHECK(mixed.zero[0].total() == doctest::Approx(16 * p));
  CHECK(mixed.zero[1].total() == doctest::Approx((4 + 12.0 / 64) * p));
  CHECK(mixed.zero[2].total() == doctest::Approx((2 + 14.0 / 64) * p));
  CHECK(mixed.zero[3].total() == doctest::Approx(16 * p / 64));
  CHECK(mixed.zero[2].mtl == doctest::Approx((2 + 14.0 / 64) * p));
  CHECK(mixed.zero[3].mtl == doctest::Approx(16 * p / 64));
  CHECK(estimate_memory(find_recipe("llama3-8b").shape, 64, DType::f16).zero[3].mtl ==
        doctest::Approx(18 * p / 64));
  // The paper's own example: 7.5 billion parameters on 64 GPUs take 120, 31.4, 16.6 and 1.9 GB.
  const double scale = 7.5e9 / p;
  CHECK(mixed.zero[0].total() * scale / 1e9 == doctest::Approx(120).epsilon(0.001));
  CHECK(mixed.zero[1].total() * scale / 1e9 == doctest::Approx(31.4).epsilon(0.001));
  CHECK(mixed.zero[2].total() * scale / 1e9 == doctest::Approx(16.6).epsilon(0.003));
  CHECK(mixed.zero[3].total() * scale / 1e9 == doctest::Approx(1.9).epsilon(0.02));
}

TEST_CASE("the largest layer may be any: a mixture behind a dense one") {
  const ModelShape shape = find_recipe("dots-llm1").shape;
  const int64_t attention = 4 * 4096 * 4096 + 2 * 4096 + 2 * 128;
  const int64_t mixture = attention + 128 * 4096 + 128 + 130 * 3 * int64_t{4096} * 1408;
  CHECK(estimate_memory(shape, 1, DType::bf16).largest_layer == mixture);
}

TEST_CASE("what mtl keeps is what the plan of a run lays out") {
  for (const char* dtype : {"bf16", "fp32"}) {
    for (const int zero : {0, 1, 2, 3}) {
      CAPTURE(dtype);
      CAPTURE(zero);
      const Recipe recipe = find_recipe("gpt2-355m");
      ResolvedSpec resolved = recipe.resolved;
      resolved.spec.precision.dtype = dtype;
      resolved.spec.parallel.zero = zero;
      Diagnostics diagnostics;
      const Plan plan = make_plan(resolved, {.vocab = recipe.shape.vocab}, 4, diagnostics);
      REQUIRE_FALSE(diagnostics.has_errors());
      const MemoryPlan& memory = plan.stages[0].memory;
      double states = 0;
      for (const char* name :
           {zero < 3 ? "weights" : "weight_shards", zero < 2 ? "grads" : "grad_shards", "master",
            "moments", "second_moments"}) {
        if (const BufferPlan* buffer = memory.find(name)) {
          states += static_cast<double>(buffer->bytes);
        }
      }
      const MemoryEstimate estimate =
          estimate_memory(recipe.shape, 4, std::string(dtype) == "bf16" ? DType::bf16 : DType::f32);
      // The plan's vocabulary is padded, and its buckets are.
      CHECK(estimate.zero[static_cast<size_t>(zero)].mtl == doctest::Approx(states).epsilon(0.005));
    }
  }
}
