// Where a fuzz target starts from.
#pragma once

#include <string>
#include <vector>

namespace mtl::fuzz {

// A target may define it: inputs that its reader accepts.
std::vector<std::string> seeds();

}  // namespace mtl::fuzz
