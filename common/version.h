// The program's version, as CMake's project() states it.
#pragma once

#include <string>

namespace mtl {

std::string version();  // "0.1.0"

}  // namespace mtl
