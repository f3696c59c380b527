// Files of lines that are a key and its value: /proc/cpuinfo, /proc/meminfo, /etc/os-release.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace mtl {

// Behind the first `separator` of the first line that begins with `key`, without spaces, tabs and
// quotes around it; "" where there is none, or no such file.
std::string file_field(const std::filesystem::path& path, std::string_view key, char separator);

}  // namespace mtl
