// What GPUs do beside a run: read by a thread, put together by the ranks, told once.
#include "runtime/engine/gpu_watch.h"

#include <atomic>

#include <doctest/doctest.h>

#include "runtime/comm/rank_threads.h"

using namespace mtl;

namespace gpu_watch_test {

namespace {

std::atomic<int> readings{0};

// A GPU that is too hot at its second reading alone.
NvmlApi hot_once() {
  NvmlApi api;
  api.init = [] { return 0; };
  api.handle_by_uuid = [](const char*, NvmlApi::Handle* gpu) {
    *gpu = nullptr;
    return 0;
  };
  api.power_usage = [](NvmlApi::Handle, unsigned* milliwatt) {
    *milliwatt = 1000 * static_cast<unsigned>(++readings);
    return 0;
  };
  api.slow_reasons = [](NvmlApi::Handle, unsigned long long* reasons) {
    *reasons = readings == 2 ? Nvml::kHardwareHeat : 0;
    return 0;
  };
  return api;
}

GpuReading reading(double power, int clock, uint64_t slowed) {
  GpuReading one;
  one.power_w = power;
  one.clock_mhz = clock;
  one.max_clock_mhz = 1980;
  one.slowed = slowed;
  return one;
}

}  // namespace

TEST_CASE("a GPU is read beside the training, and no reason to be slow is missed between") {
  readings = 0;
  GpuWatch watch(Nvml::over(hot_once()), "GPU-1", std::chrono::milliseconds(1));
  while (readings < 4) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const GpuReading first = watch.latest();
  CHECK(first.power_w >= 3);
  CHECK(first.slowed == Nvml::kHardwareHeat);
  CHECK(watch.latest().slowed == 0);
}

TEST_CASE("where nothing can be read there is no thread and no number") {
  GpuWatch watch(nullptr, "GPU-1");
  CHECK_FALSE(watch.latest().power_w);
  CHECK(watch_gpu({.device = nullptr, .why = {}}) == nullptr);
}

TEST_CASE("the ranks put their readings together") {
  std::mutex mutex;
  std::vector<GpusReport> reports;
  run_rank_threads(3, [&](CommWorld& world) {
    const std::array<int, 3> everybody = {0, 1, 2};
    const auto ranks = world.group(everybody);
    GpuReading mine;
    if (world.rank() == 1) mine = reading(700, 1005, Nvml::kHardwareHeat | Nvml::kPowerLimit);
    if (world.rank() == 2) mine = reading(650.5, 1830, Nvml::kPowerLimit);
    if (world.rank() == 2) mine.memory_used = 70'000'000'000;
    const std::vector<GpuReading> all = gather_readings(*ranks, mine);
    CHECK_FALSE(all.at(0).clock_mhz);
    CHECK(all.at(1).max_clock_mhz == 1980);
    const std::scoped_lock lock(mutex);
    reports.push_back(summary_of(all));
  });
  REQUIRE(reports.size() == 3);
  for (const GpusReport& gpus : reports) {
    CHECK(gpus.power_w == 1350.5);
    CHECK(gpus.memory_bytes == 70'000'000'000);
    CHECK(gpus.clock_mhz == 1005);
    CHECK(gpus.slowest_rank == 1);
    CHECK(gpus.temperature_c == 0);
    CHECK(gpus.slowed == std::map<std::string, int>{{"heat (hardware)", 1}, {"power limit", 2}});
  }
}

TEST_CASE("a GPU that is slowed down is told once for each reason, and a power limit never") {
  SlowGpus slow;
  std::vector<GpuReading> gpus = {reading(700, 1800, Nvml::kPowerLimit),
                                  reading(300, 1005, Nvml::kHardwareHeat)};
  const std::vector<Diagnostic> news = slow.news(gpus);
  REQUIRE(news.size() == 1);
  CHECK(news[0].code == "gpu.slowed");
  CHECK(news[0].what == "the GPU of rank 1 is slowed down by heat (hardware), 1005 of 1980 MHz");
  CHECK(slow.news(gpus).empty());
  gpus[1].slowed |= Nvml::kPowerBrake;
  REQUIRE(slow.news(gpus).size() == 1);
  // Of many a few at a time, and all in the end.
  gpus.assign(6, reading(300, 1005, Nvml::kSoftwareHeat));
  CHECK(slow.news(gpus).size() == 4);
  CHECK(slow.news(gpus).size() == 2);
  CHECK(slow.news(gpus).empty());
}

}  // namespace gpu_watch_test
