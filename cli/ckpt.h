// The members of `mtl ckpt`.
#pragma once

#include "cli/commands.h"

namespace mtl {}  // namespace mtl
