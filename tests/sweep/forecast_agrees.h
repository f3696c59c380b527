// Whether the forecast of a layout, in closed form, has the memory and the bytes on links that its
// plan has.
#pragma once

#include <string>

#include "sweep/settings.h"

namespace mtl::sweep {

// Of the same settings with a model so large that the alignment of buffers hardly counts. "" = it
// has, or such a run is refused; `error`: by how much memory is away, relative.
std::string forecast_differs(const Settings& settings, const std::string& train_yaml,
                             double& error);

}  // namespace mtl::sweep
