// What a report says of runs in numbers: of each alone, and what tells several apart.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/report/run_record.h"

namespace mtl {

// For scripts, schema mtl.report/1: of each run its state, how far it came, its losses, speed and
// counts, and the settings in which several differ.
nlohmann::ordered_json report_json(const std::vector<RunRecord>& runs);

// A setting that is not the same in all runs: its values, "" where a run has none.
struct DifferentSetting {
  std::string key;
  std::vector<std::string> values;
};
std::vector<DifferentSetting> different_settings(const std::vector<RunRecord>& runs);

// What tells runs apart: their names, with their ids where two have the same.
std::vector<std::string> run_labels(const std::vector<RunRecord>& runs);

// The newest number of a curve; nothing where there is none.
std::optional<double> last_value(const RunRecord& run, const std::string& key);

}  // namespace mtl
