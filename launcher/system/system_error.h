#pragma once

#include <string>

#include "common/error.h"

namespace mtl {

// What the system refused: Exit::environment "launch.process".
Error system_error(const std::string& what, int error);

}  // namespace mtl
