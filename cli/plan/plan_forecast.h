// What a forecast, the search for a layout and a simulated step say to a person.
#pragma once

#include <string>

#include "runtime/plan/forecast/cluster_simulation.h"
#include "runtime/plan/forecast/tune.h"

namespace mtl {

// Lines with a newline at the end of each, at most `columns` wide.
std::string forecast_text(const Workload& work, const Forecast& forecast, const Cluster& cluster,
                          int columns);
// `given`: what train.yaml asks for; null if it cannot run on so many ranks.
std::string tuning_text(const Tuning& tuning, const Forecast* given, const Cluster& cluster,
                        int gpus, int columns);
std::string simulation_text(const ClusterStep& step, const Goodput& goodput,
                            const Failures& failures, const Stragglers& stragglers, int columns);

// "37:1.2,90:1.5": rank and how many times longer it computes. Throws Error usage.value.
Stragglers parse_stragglers(const std::string& text, int world);

}  // namespace mtl
