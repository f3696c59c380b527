#include "common/file_field.h"

#include <fstream>

namespace mtl {

std::string file_field(const std::filesystem::path& path, std::string_view key, char separator) {
  constexpr const char* kAround = " \t\"";
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const size_t at = line.find(separator);
    if (at == std::string::npos || !line.starts_with(key)) continue;
    const size_t first = line.find_first_not_of(kAround, at + 1);
    if (first == std::string::npos) return {};
    return line.substr(first, line.find_last_not_of(kAround) + 1 - first);
  }
  return {};
}

}  // namespace mtl
