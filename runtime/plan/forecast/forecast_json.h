// Forecasts as JSON: the parts "forecast", "tune" and "simulation" of `mtl plan --json`.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "runtime/plan/forecast/cluster_simulation.h"
#include "runtime/plan/forecast/tune.h"

namespace mtl {

nlohmann::json to_json(const LayoutChoice& layout);
nlohmann::json to_json(const Forecast& forecast);
nlohmann::json to_json(const Cluster& cluster);
nlohmann::json to_json(const Tuning& tuning);
nlohmann::json to_json(const ClusterStep& step);
nlohmann::json to_json(const Goodput& goodput);

}  // namespace mtl
