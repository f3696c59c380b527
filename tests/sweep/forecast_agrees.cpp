#include "sweep/forecast_agrees.h"

#include <cmath>
#include <tuple>

#include <fmt/format.h>

#include "runtime/plan/forecast/forecast.h"

namespace mtl::sweep {

namespace {

constexpr double kMemoryBound = 0.02;  // forecast.h
constexpr double kLinkBound = 0.01;
constexpr int64_t kVocab = 32'000;
constexpr int64_t kLarger = 8;  // than the models that are run

Settings enlarged(const Settings& settings) {
  Settings large = settings;
  for (const char* key : {"model.hidden", "model.head_dim", "model.ffn", "train.seq_len",
                          "model.max_seq", "train.logits_rows"}) {
    if (const int64_t value = settings.number(key, 0); value > 0) large.set(key, kLarger * value);
  }
  // Forecasts know nothing of buckets but those of ZeRO-2 and 3.
  const std::string bucket = settings.text("parallel.bucket_mb");
  if (!bucket.empty()) {
    large.set("parallel.bucket_mb", fmt::format("{}", kLarger * kLarger * std::stod(bucket)));
  }
  return large;
}

// Bytes that leave a rank of each stage in a step. (Not of tensor parallelism: forecasts leave out
// the gradients of what its ranks hold in common, which count in a step of so few tokens.)
std::string links_differ(const Plan& plan) {
  const LayoutChoice layout = layout_of(plan);
  const auto stages = stage_times(workload_of(plan), layout, *find_cluster("h100-80g"));
  const auto micro_batches = static_cast<double>(plan.largest().shape.micro_batches);
  for (size_t i = 0; i < stages.size(); ++i) {
    const auto planned = [&](Link link) {
      return static_cast<double>(plan.stages[i].traffic[link].on_the_wire(
          link_ranks(link, plan.model, plan.grid.sizes())));
    };
    const LinkForecast& links = stages[i].links;
    const double sent = layout.pp > 1 ? planned(Link::activations) + planned(Link::gradients) : 0;
    for (const auto& [name, foreseen, exact] :
         {std::tuple{"context", links.context, planned(Link::context)},
          {"experts", links.expert, planned(Link::experts)},
          {"pipeline", links.pipeline, sent}}) {
      const double bytes = micro_batches * foreseen;
      if (std::abs(bytes - exact) <= kLinkBound * exact) continue;
      return fmt::format("stage {}, {}: {:.0f} bytes are forecast, and {:.0f} planned", i, name,
                         bytes, exact);
    }
  }
  return {};
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
  if (error <= kMemoryBound) return links_differ(plan);
  return fmt::format("{:.0f} bytes of a rank are forecast, and {:.0f} planned: {:.1f} %", forecast,
                     exact, 100 * (forecast / exact - 1));
}

}  // namespace mtl::sweep
