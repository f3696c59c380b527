// The catalogue of GPUs: found by name, and agreeing with what the hardware does per clock.
#include "runtime/plan/gpus.h"

#include <set>

#include <doctest/doctest.h>

using namespace mtl;

TEST_CASE("GPUs are found by the name of CUDA and by the short one") {
  const GpuModel* h200 = find_gpu("NVIDIA H200");
  REQUIRE(h200 != nullptr);
  CHECK(h200 == find_gpu("h200"));
  CHECK(h200 == find_gpu("H200"));
  CHECK(peak_flops(*h200, DType::bf16) == doctest::Approx(989.4e12));
  CHECK(peak_flops(*h200, DType::f32) == doctest::Approx(66.9e12));
  CHECK(peak_flops(*h200, DType::u8) == 0);
  CHECK(h200->memory_rate == doctest::Approx(4.8e12));
  CHECK(find_gpu("NVIDIA H200 NVL") != h200);
  CHECK(find_gpu("NVIDIA GeForce RTX 4090") != nullptr);
  CHECK(find_gpu("NVIDIA GeForce RTX 4090 Laptop GPU") == nullptr);
  CHECK(find_gpu("NVIDIA H20") == nullptr);
  CHECK(find_gpu("") == nullptr);
}

TEST_CASE("the rows of the GPU catalogue are consistent") {
  std::set<std::string> names;
  for (const GpuModel& gpu : gpu_catalogue()) {
    CAPTURE(gpu.name);
    CHECK(names.insert(gpu.name).second);
    CHECK(names.insert(gpu.alias).second);
    CHECK(gpu.bf16 == gpu.fp16);
    CHECK(gpu.tf32 == doctest::Approx(gpu.bf16 / 2).epsilon(0.02));
    const bool fp8 = gpu.major > 8 || gpu.minor == 9;
    CHECK((gpu.fp8 > 0) == fp8);
    if (fp8) CHECK(gpu.fp8 == doctest::Approx(2 * gpu.bf16).epsilon(0.02));
    CHECK(gpu.fp32 < gpu.bf16);
    CHECK(gpu.memory_bytes >= 24e9);
    CHECK(gpu.memory_rate >= 300e9);
    CHECK_FALSE(gpu.estimated);
  }
}

TEST_CASE("an unknown GPU is estimated from what the driver says") {
  // As if these were not in the catalogue: multiprocessors and boost clocks of the data sheets.
  const struct {
    const char* like;
    int multiprocessors;
    double clock_hz;
  } kKnown[] = {{"a100", 108, 1.41e9},
                {"h100", 132, 1.83e9},
                {"b200", 148, 1.85e9},
                {"rtx4090", 128, 2.52e9},
                {"rtx5090", 170, 2.407e9}};
  for (const auto& known : kKnown) {
    CAPTURE(known.like);
    const GpuModel& row = *find_gpu(known.like);
    const auto gpu = gpu_model({.name = "NVIDIA Something",
                                .major = row.major,
                                .minor = row.minor,
                                .multiprocessors = known.multiprocessors,
                                .clock_hz = known.clock_hz,
                                .memory_bytes = 1e9,
                                .memory_rate = 2e9});
    REQUIRE(gpu);
    CHECK(gpu->estimated);
    CHECK(gpu->bf16 == doctest::Approx(row.bf16).epsilon(0.02));
    CHECK(gpu->fp8 == doctest::Approx(row.fp8).epsilon(0.02));
    CHECK(gpu->fp32 == doctest::Approx(row.fp32).epsilon(0.1));
    CHECK(gpu->memory_rate == 2e9);
  }
  GpuFacts facts = {.name = "NVIDIA H200", .major = 9, .minor = 0};
  REQUIRE(gpu_model(facts));
  CHECK_FALSE(gpu_model(facts)->estimated);
  facts.name = "NVIDIA Next";
  CHECK_FALSE(gpu_model(facts));  // no clock, no estimate
  facts.major = 99;
  facts.multiprocessors = 100;
  facts.clock_hz = 1e9;
  CHECK_FALSE(gpu_model(facts));
}
