#include "runtime/engine/gpu_watch.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace mtl {

namespace {

// A rank's numbers, in the order in which they travel.
enum Number { kPower, kMemory, kClock, kMaxClock, kHeat, kSlowed, kNumbers };

constexpr double kUnknown = -1;

template <typename Number>
double known(const std::optional<Number>& value) {
  return value ? static_cast<double>(*value) : kUnknown;
}

// Neither the power limit, which a GPU at work runs into by design, nor clocks that somebody has
// set.
constexpr uint64_t kTrouble =
    Nvml::kHardwareSlowdown | Nvml::kSoftwareHeat | Nvml::kHardwareHeat | Nvml::kPowerBrake;

constexpr size_t kMostNews = 4;

}  // namespace

GpuWatch::GpuWatch(std::unique_ptr<Nvml> nvml, std::string uuid, std::chrono::milliseconds every)
    : nvml_(std::move(nvml)), uuid_(std::move(uuid)) {
  if (!nvml_) return;
  latest_ = nvml_->read(uuid_);
  thread_ = std::thread([this, every] { watch(every); });
}

GpuWatch::~GpuWatch() {
  if (!thread_.joinable()) return;
  {
    const std::scoped_lock lock(mutex_);
    end_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

GpuReading GpuWatch::latest() {
  const std::scoped_lock lock(mutex_);
  GpuReading reading = latest_;
  reading.slowed |= std::exchange(slowed_, 0);
  return reading;
}

void GpuWatch::watch(std::chrono::milliseconds every) {
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, every, [this] { return end_; })) {
    lock.unlock();
    const GpuReading reading = nvml_->read(uuid_);
    lock.lock();
    latest_ = reading;
    slowed_ |= reading.slowed;
  }
}

std::unique_ptr<GpuWatch> watch_gpu(const MadeDevice& made) {
  if (made.cuda == nullptr) return nullptr;
  const CudaFacts facts = made.cuda->facts(false);
  return std::make_unique<GpuWatch>(Nvml::open(),
                                    facts.devices.at(static_cast<size_t>(made.index)).uuid);
}

std::vector<GpuReading> gather_readings(Communicator& all_ranks, const GpuReading& mine) {
  const auto ranks = static_cast<size_t>(all_ranks.size());
  std::array<double, kNumbers> own = {known(mine.power_w),       known(mine.memory_used),
                                      known(mine.clock_mhz),     known(mine.max_clock_mhz),
                                      known(mine.temperature_c), static_cast<double>(mine.slowed)};
  std::vector<double> all(ranks * kNumbers);
  all_ranks.all_gather(Tensor(own.data(), DType::f64, {kNumbers}),
                       Tensor(all.data(), DType::f64, {static_cast<int64_t>(all.size())}));
  std::vector<GpuReading> readings(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    const double* of = &all[rank * kNumbers];
    GpuReading& reading = readings[rank];
    if (of[kPower] >= 0) reading.power_w = of[kPower];
    if (of[kMemory] >= 0) reading.memory_used = static_cast<int64_t>(of[kMemory]);
    if (of[kClock] >= 0) reading.clock_mhz = static_cast<int>(of[kClock]);
    if (of[kMaxClock] >= 0) reading.max_clock_mhz = static_cast<int>(of[kMaxClock]);
    if (of[kHeat] >= 0) reading.temperature_c = static_cast<int>(of[kHeat]);
    reading.slowed = static_cast<uint64_t>(of[kSlowed]);
  }
  return readings;
}

GpusReport summary_of(const std::vector<GpuReading>& by_rank) {
  GpusReport gpus;
  int rank = 0;
  for (const GpuReading& one : by_rank) {
    gpus.power_w += one.power_w.value_or(0);
    gpus.memory_bytes = std::max(gpus.memory_bytes, one.memory_used.value_or(0));
    gpus.temperature_c = std::max(gpus.temperature_c, one.temperature_c.value_or(0));
    if (const int clock = one.clock_mhz.value_or(0);
        clock > 0 && (gpus.clock_mhz == 0 || clock < gpus.clock_mhz)) {
      gpus.clock_mhz = clock;
      gpus.slowest_rank = rank;
    }
    for (const std::string& reason : throttle_words(one.slowed)) ++gpus.slowed[reason];
    ++rank;
  }
  return gpus;
}

std::vector<Diagnostic> SlowGpus::news(const std::vector<GpuReading>& by_rank) {
  std::vector<Diagnostic> news;
  int rank = -1;
  for (const GpuReading& one : by_rank) {
    ++rank;
    const uint64_t fresh = one.slowed & kTrouble & ~told_[rank];
    if (fresh == 0 || news.size() == kMostNews) continue;
    told_[rank] |= fresh;
    std::string clock;
    if (one.clock_mhz && one.max_clock_mhz) {
      clock = fmt::format(", {} of {} MHz", *one.clock_mhz, *one.max_clock_mhz);
    }
    news.push_back({.code = "gpu.slowed",
                    .what = fmt::format("the GPU of rank {} is slowed down by {}{}", rank,
                                        fmt::join(throttle_words(fresh), ", "), clock),
                    .help = "every step waits for the slowest rank: see to its cooling and power "
                            "(nvidia-smi -q -d PERFORMANCE)",
                    .severity = Diagnostic::Severity::warning});
  }
  return news;
}

}  // namespace mtl
