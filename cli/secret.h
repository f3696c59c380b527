// Names of variables and keys whose values are not shown.
#pragma once

#include <string>

namespace mtl {

// "HF_TOKEN", "aws_secret_access_key" ...
bool is_secret(const std::string& name);

}  // namespace mtl
