// Whether ranks put on their links in a step what the plan says, to the byte.
#pragma once

#include <string>

#include "sweep/settings.h"

namespace mtl::sweep {

// Trains a step of a text that is made up. "" = they do, or such a run is refused.
std::string links_differ_from_plan(const Settings& settings, const std::string& train_yaml,
                                   int64_t vocab);

}  // namespace mtl::sweep
