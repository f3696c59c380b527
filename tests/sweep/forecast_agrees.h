// Whether the forecast of a layout's memory, in closed form, is what its plan allocates.
#pragma once

#include <string>

#include "sweep/settings.h"

namespace mtl::sweep {

// Of the same settings with a model so large that the alignment of buffers does not count. "" = it
// is, or such a run is refused; `error`: by how much, relative.
std::string forecast_differs(const Settings& settings, const std::string& train_yaml,
                             double& error);

}  // namespace mtl::sweep
