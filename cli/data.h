// The members of `mtl data`.
#pragma once

#include "cli/commands.h"

namespace mtl {}  // namespace mtl
