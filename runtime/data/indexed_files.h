// What the reader and the writer of indexed datasets share: names and the header.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace mtl {

constexpr std::string_view kIndexMagic("MMIDIDX\0\0", 9);
constexpr int64_t kIndexHeaderBytes = 34;

// PREFIX may have dots of its own.
inline std::filesystem::path bin_path(const std::filesystem::path& prefix) {
  return prefix.string() + ".bin";
}
inline std::filesystem::path idx_path(const std::filesystem::path& prefix) {
  return prefix.string() + ".idx";
}

}  // namespace mtl
