// What mfu is a share of, by the name of the GPU.
#include "runtime/engine/yardstick.h"

#include <array>
#include <mutex>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/comm/rank_threads.h"

using namespace mtl;

namespace yardstick_test {

namespace {

CudaFacts facts_of(bool) {
  CudaFacts facts;
  for (const char* name : {"NVIDIA H200", "NVIDIA Something New", "NVIDIA H200"}) {
    facts.devices.push_back({.name = name,
                             .uuid = {},
                             .pci = {},
                             .major = 9,
                             .minor = 0,
                             .multiprocessors = 132,
                             .mig = facts.devices.size() == 2,
                             .refusal = {}});
  }
  return facts;
}

}  // namespace

TEST_CASE("yardstick: the peak is that of this rank's GPU in the compute type") {
  CudaPlugin plugin{};
  plugin.facts = facts_of;
  MadeDevice made{.device = nullptr, .why = {}, .cuda = &plugin};
  CHECK(catalogue_peak(made, DType::bf16) == doctest::Approx(989.4e12));
  CHECK(catalogue_peak(made, DType::f32) == doctest::Approx(66.9e12));
  made.index = 1;  // in no catalogue
  CHECK(catalogue_peak(made, DType::bf16) == 0);
  made.index = 2;  // a part of a GPU
  CHECK(catalogue_peak(made, DType::bf16) == 0);
  CHECK(catalogue_peak({.device = nullptr, .why = {}}, DType::bf16) == 0);
}

TEST_CASE("yardstick: the peak only where all ranks have one") {
  const auto agreed = [](std::array<double, 2> peaks) {
    std::mutex mutex;
    std::vector<Yardstick> all;
    run_rank_threads(2, [&](CommWorld& world) {
      const std::array<int, 2> everybody = {0, 1};
      const auto ranks = world.group(everybody);
      const auto rank = static_cast<size_t>(world.rank());
      const Yardstick yardstick =
          agree_on_yardstick(*ranks, 10.0 * (world.rank() + 1), peaks[rank]);
      const std::scoped_lock lock(mutex);
      all.push_back(yardstick);
    });
    CHECK(all.at(0).flops == all.at(1).flops);
    CHECK(all.at(0).is_peak == all.at(1).is_peak);
    CHECK(all.at(0).measured == 30);
    return all.front();
  };
  CHECK(agreed({100, 200}).flops == 300);
  CHECK(agreed({100, 200}).is_peak);
  CHECK(agreed({100, 0}).flops == 30);
  CHECK_FALSE(agreed({100, 0}).is_peak);
  CHECK_FALSE(agreed({0, 0}).is_peak);
}

}  // namespace yardstick_test
