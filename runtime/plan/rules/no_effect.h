// Settings that are written and change nothing, because of another one.
#pragma once

#include "runtime/spec/train_spec.h"

namespace mtl {

// Adds a warning config.no_effect for each value that is not the built-in one and that nothing
// reads beside the other settings.
void warn_of_no_effect(const ResolvedSpec& resolved, Diagnostics& diagnostics);

}  // namespace mtl
