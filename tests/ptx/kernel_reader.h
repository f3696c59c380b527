// A kernel of a module, from its text.
#pragma once

#include <string_view>

#include "ptx/module.h"

namespace mtl::ptx {

// `text` from ".entry" on, which is at `line` of the module.
Kernel read_kernel(const Module& module, std::string_view text, int line);

}  // namespace mtl::ptx
