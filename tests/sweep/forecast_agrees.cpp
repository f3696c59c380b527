#include "sweep/forecast_agrees.h"

#include <cmath>

#include <fmt/format.h>

#include "runtime/plan/forecast.h"

namespace mtl::sweep {

namespace {

constexpr double kBound = 0.02;  // forecast.h
constexpr int64_t kVocab = 32'000;

Settings enlarged(const Settings& settings) {
  Settings large = settings;
  for (const char* key : {"model.hidden", "model.head_dim", "model.ffn", "train.seq_len",
                          "model.max_seq", "train.logits_rows"}) {
    if (const int64_t value = settings.number(key, 0); value > 0) large.set(key, 32 * value);
  }
  return large;
}

}  // namespace

std::string forecast_differs(const Settings& settings, const std::string& train_yaml,
                             double& error) {
  Planned planned;
  error = 0;
  if (!plan_of(enlarged(settings), train_yaml, kVocab, planned)) return {};
  const Plan& plan = planned.plan;
  const double forecast = forecast_memory(workload_of(plan), layout_of(plan)).total;
  const auto exact = static_cast<double>(plan.peak_bytes());
  error = std::abs(forecast / exact - 1);
  if (error <= kBound) return {};
  return fmt::format("{:.0f} bytes of a rank are forecast, and {:.0f} planned: {:.1f} %", forecast,
                     exact, 100 * (forecast / exact - 1));
}

}  // namespace mtl::sweep
