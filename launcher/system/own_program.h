// Where this very program lies.
#pragma once

#include <string>

namespace mtl {

// Its absolute path; "mtl" if the system does not say.
std::string own_program();

}  // namespace mtl
