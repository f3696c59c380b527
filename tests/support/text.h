// What tests look for in what programs say.
#pragma once

#include <string>

namespace mtl::test {

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace mtl::test
