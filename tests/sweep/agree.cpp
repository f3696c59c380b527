#include "sweep/agree.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/checkpoint/compare.h"
#include "runtime/checkpoint/whole_tensor.h"
#include "support/layouts.h"

namespace mtl::sweep {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// What says how fast it went, and when.
constexpr const char* kOfTheMachine[] = {"time",   "tokens_per_s", "step_time_s",  "mfu",
                                         "mfu_of", "mfu_of_flops", "memory_bytes", "eval_time_s"};

// Sums of doubles over layers, which stages take in parts: where values lie far apart (runs that
// diverge), the last bits depend on these. Nothing is computed from them.
constexpr const char* kSumsOfStages[] = {"moe_aux_loss", "moe_z_loss"};

json without_speed(json line) {
  for (const char* key : kOfTheMachine) line.erase(key);
  for (const char* key : kSumsOfStages) {
    if (line.contains(key) && line[key].is_number()) {
      line[key] = fmt::format("{:.12g}", line[key].get<double>());
    }
  }
  return line;
}

std::vector<json> behind(const std::vector<json>& lines, int64_t step) {
  std::vector<json> later;
  for (const json& line : lines) {
    if (line.at("step").get<int64_t>() > step) later.push_back(without_speed(line));
  }
  return later;
}

std::string first_difference(const char* what, const std::vector<json>& a,
                             const std::vector<json>& b) {
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i] != b[i]) return fmt::format("{}: {} and {}", what, a[i].dump(), b[i].dump());
  }
  if (a.size() == b.size()) return {};
  return fmt::format("{}: {} lines and {}", what, a.size(), b.size());
}

fs::path last_checkpoint(const Outcome& run) {
  const std::vector<int64_t> steps = checkpoint_steps(run.dir);
  return steps.empty() ? fs::path() : checkpoint_path(run.dir / "checkpoints", steps.back());
}

double relative(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double size = std::max(std::abs(a), std::abs(b));
  const double moved = std::abs(a - b) / size;
  return std::isnan(moved) ? std::numeric_limits<double>::infinity() : moved;
}

double number(const json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number() ? found->get<double>()
                                                   : std::numeric_limits<double>::quiet_NaN();
}

std::vector<float> values_of(CheckpointReader& reader, const TensorInfo& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.elements));
  read_elements(reader, tensor, DType::f32, 0, tensor.elements, values.data());
  return values;
}

// Of the optimizer's moving sums of gradients, in which what a layout does to gradients stays
// visible (an update divides by their size): the largest difference of a tensor, relative to it or
// to a thousandth of all, for those that are zero but for rounding (of the bias of keys, say).
double moments_moved(const Outcome& a, const Outcome& b, std::string& name) {
  CheckpointReader in_a(last_checkpoint(a)), in_b(last_checkpoint(b));
  std::map<std::string, std::pair<std::vector<float>, std::vector<float>>> moments;
  std::map<std::string, TensorInfo> of_b;
  for (const TensorInfo& tensor : tensors_of(in_b)) of_b[tensor.name] = tensor;
  double all = 0;
  for (const TensorInfo& tensor : tensors_of(in_a)) {
    const bool moment =
        tensor.name.ends_with(".exp_avg") || tensor.name.ends_with(".momentum_buffer");
    if (!moment || !of_b.contains(tensor.name)) continue;
    auto& both = moments[tensor.name];
    both = {values_of(in_a, tensor), values_of(in_b, of_b[tensor.name])};
    all += std::pow(test::norm_of(both.second), 2);
  }
  all = std::sqrt(all);
  double worst = 0;
  for (auto& [tensor, both] : moments) {
    const double size = std::max(test::norm_of(both.second), 1e-3 * all);
    for (size_t i = 0; i < both.first.size(); ++i) both.first[i] -= both.second[i];
    const double moved = size > 0 ? test::norm_of(both.first) / size : test::norm_of(both.first);
    if (moved <= worst) continue;
    worst = moved;
    name = tensor;
  }
  return worst;
}

}  // namespace

std::string differs_in_bits(const Outcome& a, const Outcome& b, int64_t from_step) {
  std::string found =
      first_difference("metrics.jsonl", behind(a.steps, from_step), behind(b.steps, from_step));
  if (found.empty()) {
    found =
        first_difference("generated.jsonl", behind(a.texts, from_step), behind(b.texts, from_step));
  }
  if (!found.empty()) return found;
  const std::vector<int64_t> steps = checkpoint_steps(a.dir), of_b = checkpoint_steps(b.dir);
  if (!std::includes(of_b.begin(), of_b.end(), steps.begin(), steps.end())) {
    return fmt::format("checkpoints of steps {} and {}", fmt::join(steps, " "),
                       fmt::join(of_b, " "));
  }
  for (const int64_t step : steps) {
    const CheckpointDifference difference =
        compare(checkpoint_path(a.dir / "checkpoints", step),
                checkpoint_path(b.dir / "checkpoints", step), false);
    if (difference.none()) continue;
    if (difference.tensors.empty()) {
      return fmt::format("checkpoint of step {}: {}", step, difference.extras.front());
    }
    const TensorDifference& tensor = difference.tensors.front();
    return fmt::format("checkpoint of step {}: {} tensors, the first {}: {} ({} elements, by {})",
                       step, difference.tensors.size(), tensor.tensor, tensor.what, tensor.elements,
                       tensor.max_abs);
  }
  return {};
}

// In fp32 those of the documentation; of moments, and of rounded numbers, several times the most
// that was seen in five hundred seeds. Moments of 16-bit passes say nothing: biases of keys have
// gradients of rounding alone.
Bounds bounds_of(const TrainSpec& spec) {
  constexpr double kAny = std::numeric_limits<double>::infinity();
  const std::string& dtype = spec.precision.dtype;
  // Norms behind blocks divide by what these make at first, which is small: so is their gradient's
  // denominator.
  const double norms = spec.model.norm.place == "input" ? 1 : 5;
  if (dtype == "fp16") return {1e-3, norms * 5e-3, 3e-3, kAny};
  if (dtype != "fp32") return {4e-3, norms * 3e-2, 1e-2, kAny};
  if (spec.precision.grad_reduce == "bf16") return {1e-6, 1e-2, 1e-2, kAny};
  return {1e-6, 1e-5, 1e-4, 1e-2};
}

std::string is_not_near(const Outcome& a, const Outcome& b, const Bounds& bounds, Moved& moved) {
  if (a.steps.size() != b.steps.size()) {
    return fmt::format("metrics.jsonl: {} lines and {}", a.steps.size(), b.steps.size());
  }
  std::string found;
  const auto hold = [&](const char* key, const json& x, const json& y, double bound, double& most) {
    const double by = relative(number(x, key), number(y, key));
    most = std::max(most, by);
    if (by <= bound || !found.empty()) return;
    found = fmt::format("{} is {} away, more than {}: {} and {}", key, by, bound,
                        without_speed(x).dump(), without_speed(y).dump());
  };
  bool first = true;
  for (size_t i = 0; i < a.steps.size(); ++i) {
    const json &x = a.steps[i], &y = b.steps[i];
    double ignored = 0;
    for (const char* key : {"step", "lr", "loss_scale", "skipped"}) hold(key, x, y, 0, ignored);
    if (first && x.contains("loss")) {
      hold("loss", x, y, bounds.first_loss, moved.first_loss);
      hold("grad_norm", x, y, bounds.first_norm, moved.first_norm);
      first = false;
    }
    for (const auto& [key, value] : y.items()) {
      if (key == "loss" || key.starts_with("valid_loss")) {
        hold(key.c_str(), x, y, bounds.loss, moved.loss);
      }
    }
    for (const char* key : {"moe_aux_loss", "moe_z_loss"})
      hold(key, x, y, 10 * bounds.loss, ignored);
  }
  if (!found.empty()) return found;
  std::string tensor;
  const double by = moments_moved(a, b, tensor);
  moved.moments = std::max(moved.moments, by);
  if (by <= bounds.moments) return {};
  return fmt::format("{} is {} away, more than {}", tensor, by, bounds.moments);
}

}  // namespace mtl::sweep
