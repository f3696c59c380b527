// What tests look for in what programs say and write.
#pragma once

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace mtl::test {

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// All that a file holds; "" where there is none.
inline std::string file_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace mtl::test
