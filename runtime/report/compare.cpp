#include "runtime/report/compare.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

namespace mtl {

namespace {

using nlohmann::ordered_json;

ordered_json number_json(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json run_json(const RunRecord& run) {
  ordered_json one = {{"name", run.name},    {"id", run.id},     {"dir", run.dir.string()},
                      {"state", run.state},  {"step", run.step}, {"steps", run.steps},
                      {"tokens", run.tokens}};
  if (run.exit_code) one["exit_code"] = *run.exit_code;
  if (!run.reason.empty()) one["reason"] = run.reason;
  one["loss"] = number_json(last_value(run, "loss"));
  one["valid_loss"] = number_json(last_value(run, "valid_loss"));
  if (const Curve* valid = run.curve("valid_loss")) {
    one["best_valid_loss"] = valid->lowest().value;
    one["best_valid_step"] = valid->lowest().step;
  }
  one["tokens_per_s"] =
      number_json(run.tokens_per_s > 0 ? std::optional(run.tokens_per_s) : std::nullopt);
  one["mfu"] = number_json(last_value(run, "mfu"));
  one["seconds"] = run.seconds;
  one["began"] = run.began;
  one["last_heard"] = run.last_heard;
  one["starts"] = run.starts;
  one["failures"] = run.failures;
  one["checkpoints"] = run.checkpoints;
  one["skipped"] = run.skipped;
  one["damaged_lines"] = run.damaged_lines;
  return one;
}

}  // namespace

std::optional<double> last_value(const RunRecord& run, const std::string& key) {
  const Curve* curve = run.curve(key);
  if (curve == nullptr) return std::nullopt;
  return curve->last().value;
}

std::vector<std::string> run_labels(const std::vector<RunRecord>& runs) {
  std::vector<std::string> labels;
  for (const RunRecord& run : runs) {
    const auto same = std::count_if(runs.begin(), runs.end(),
                                    [&](const RunRecord& other) { return other.name == run.name; });
    labels.push_back(same > 1 ? run.name + "/" + run.id : run.name);
  }
  return labels;
}

std::vector<DifferentSetting> different_settings(const std::vector<RunRecord>& runs) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<std::string>> values;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const RunSetting& setting : runs[i].settings) {
      auto [found, added] = values.try_emplace(setting.key, runs.size());
      if (added) order.push_back(setting.key);
      found->second[i] = setting.value;
    }
  }
  std::vector<DifferentSetting> differences;
  for (const std::string& key : order) {
    const std::vector<std::string>& of_runs = values.at(key);
    const bool same = std::all_of(of_runs.begin(), of_runs.end(),
                                  [&](const std::string& one) { return one == of_runs.front(); });
    if (!same && key != "run.name") differences.push_back({key, of_runs});
  }
  return differences;
}

ordered_json report_json(const std::vector<RunRecord>& runs) {
  ordered_json document = {{"schema", "mtl.report/1"}, {"runs", ordered_json::array()}};
  for (const RunRecord& run : runs) document["runs"].push_back(run_json(run));
  if (runs.size() > 1) {
    ordered_json differences = ordered_json::object();
    for (const DifferentSetting& setting : different_settings(runs)) {
      differences[setting.key] = setting.values;
    }
    document["different_settings"] = std::move(differences);
  }
  return document;
}

}  // namespace mtl
