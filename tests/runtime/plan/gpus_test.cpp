// The catalogue of GPUs: found by name, and consistent.
#include "runtime/plan/forecast/gpus.h"

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
    const bool fp8 = gpu.major > 8 || gpu.minor == 9;
    CHECK((gpu.fp8 > 0) == fp8);
    if (fp8) CHECK(gpu.fp8 == doctest::Approx(2 * gpu.bf16).epsilon(0.02));
    CHECK(gpu.fp32 < gpu.bf16);
    CHECK(gpu.memory_bytes >= 24e9);
    CHECK(gpu.memory_rate >= 300e9);
  }
}
